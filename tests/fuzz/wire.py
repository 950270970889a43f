"""What a child process may say on its connection: whole, in pieces, and by handlers that got hold
of it."""

from typing import Any

from fuzz.mutations import mutate_bytes, mutate_msgpack
from fuzz.tape import Tape
from parkade.shard.commands import Outcome
from parkade.store.record import ErrorText, ProgressNote
from parkade.wire import (
    HEAD_BYTES,
    Ask,
    BadMessage,
    Begun,
    Ended,
    Frames,
    Load,
    Note,
    Ready,
    Save,
    Unfit,
    pack,
    read_for_child,
    read_for_owner,
)

__all__ = ["target"]

FRAME_BYTES_MAX = 4_096
SAID: tuple[Any, ...] = (
    Ready(), Begun(5, 1), Ended(Outcome(5, 1, "done", result=b"\xc0"), 7), Ask(5, 1, 3, Load()),
    Ask(5, 1, 4, Save(b"\x01")), Note(5, 1, ProgressNote(1, None, "half", 9)),
    Unfit(5, 1, ErrorText("LookupError", "no task")),
)  # fmt: skip


def target(data: bytes) -> None:
    """Frames of messages, changed and cut: each is a message or is none, however it arrives."""
    tape = Tape(data)
    stream = b""
    for _ in range(1 + tape.below(4)):
        framed = pack(tape.pick(SAID))
        if tape.flag():
            body = mutate_msgpack(tape, framed[HEAD_BYTES:])[: 2 * FRAME_BYTES_MAX]
            framed = len(body).to_bytes(HEAD_BYTES, "little") + body
        stream += framed
    if tape.flag():
        stream = mutate_bytes(tape, stream)
    whole = _heard(stream, len(stream))
    assert _heard(stream, 1 + tape.below(64)) == whole, "it depends on how it arrives"


def _heard(stream: bytes, size: int) -> list[Any]:
    """What comes of it, up to the first that is no message."""
    frames, heard = Frames(FRAME_BYTES_MAX), list[Any]()
    try:
        for at in range(0, len(stream), size or 1):
            for body in frames.feed(stream[at : at + size]):
                heard.append(repr(read_for_owner(body)))
                _only_bad(body)
    except BadMessage as error:
        heard.append(type(error))
    return heard


def _only_bad(body: bytes) -> None:
    try:
        read_for_child(body)
    except BadMessage:
        return
