"""What an engine and its child processes say to each other: messages, and their frames.

A message is a msgspec Struct of plain values, so that reading one runs nobody's code. A frame is
its length, 4 bytes, little-endian, and the message. What cannot be read raises `BadMessage`; who
hears it ends the child.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from parkade.calls import Prepared
from parkade.policies import StoredRetry
from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText, ProgressNote

__all__ = [
    "CANCELLED",
    "Answer",
    "Ask",
    "BadMessage",
    "Bear",
    "Begun",
    "Born",
    "Bye",
    "Ended",
    "Frames",
    "Load",
    "Loaded",
    "Note",
    "Order",
    "Question",
    "Ready",
    "Refused",
    "Reply",
    "Save",
    "Saved",
    "Stop",
    "ToChild",
    "ToOwner",
    "Unfit",
    "Welcome",
    "pack",
    "read_for_child",
    "read_for_owner",
]

HEAD_BYTES = 4
CANCELLED = "cancelled"  # in place of an error's code: the attempt was given up


class BadMessage(Exception):
    """What came is no message."""


class _Message(msgspec.Struct, array_like=True, frozen=True):
    """Base of all messages. Both ends are of one version: fields may change with it."""


class Welcome(_Message, frozen=True, tag=1):
    """The first to a child. `main` and `main_path`: what the owner runs as its main program, by
    name or by path. A result may have `result_bytes_max`."""

    argv: list[str]
    main: str | None
    main_path: str | None
    result_bytes_max: int


class Order(_Message, frozen=True, tag=2):
    """Make an attempt. `modules`: where its task is registered, when they are imported.
    `default_retry`: the engine's, for a task whose registry no engine of the child includes."""

    ticket: Ticket
    ticket_id: str
    number: int
    task: str
    modules: list[str]
    payload: bytes
    default_retry: StoredRetry | None = None


class Stop(_Message, frozen=True, tag=3):
    """Ask the attempt of this fence to end."""

    serial: int
    fence: int
    reason: str
    is_for_good: bool


class Bye(_Message, frozen=True, tag=4):
    """End yourself."""


class Refused(_Message, frozen=True, tag=32):
    """An answer that is an error: the name of its type, its code and its text."""

    kind: str
    code: str
    text: str


class Born(_Message, frozen=True, tag=33):
    """A child of the attempt has its id."""

    serial: int
    part: int


class Saved(_Message, frozen=True, tag=34):
    """What the attempt saved is durable."""


class Loaded(_Message, frozen=True, tag=35):
    """What was saved last for the ticket."""

    value: bytes | None


Answer: TypeAlias = Refused | Born | Saved | Loaded


class Reply(_Message, frozen=True, tag=5):
    """The answer to the question of this number."""

    number: int
    answer: Answer


class Ready(_Message, frozen=True, tag=16):
    """The child is up."""


class Begun(_Message, frozen=True, tag=17):
    """The handler is about to be called."""

    serial: int
    fence: int


class Ended(_Message, frozen=True, tag=18):
    """How the attempt ended, after `ran_ms`. `has_children`: those that it asked for are made."""

    outcome: Outcome
    ran_ms: int
    has_children: bool = False


class Unfit(_Message, frozen=True, tag=19):
    """No attempt was made: the task is not to be had here."""

    serial: int
    fence: int
    error: ErrorText


class Bear(_Message, frozen=True, tag=48):
    """A child, if the attempt ends so that it has children."""

    prepared: Prepared


class Save(_Message, frozen=True, tag=49):
    """A checkpoint of the attempt."""

    value: bytes


class Load(_Message, frozen=True, tag=50):
    """What was saved last for the ticket."""


Question: TypeAlias = Bear | Save | Load


class Note(_Message, frozen=True, tag=21):
    """The handler is alive; and how far it is, unless that has not changed."""

    serial: int
    fence: int
    progress: ProgressNote | None = None


class Ask(_Message, frozen=True, tag=20):
    """The attempt asks something; it waits for the reply of this number."""

    serial: int
    fence: int
    number: int
    question: Question


ToChild: TypeAlias = Welcome | Order | Stop | Bye | Reply
ToOwner: TypeAlias = Ready | Begun | Ended | Unfit | Note | Ask

_encode = msgspec.msgpack.Encoder().encode
_for_child: "msgspec.msgpack.Decoder[ToChild]" = msgspec.msgpack.Decoder(ToChild)
_for_owner: "msgspec.msgpack.Decoder[ToOwner]" = msgspec.msgpack.Decoder(ToOwner)


def pack(message: ToChild | ToOwner) -> bytes:
    """A message in its frame."""
    body = _encode(message)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


def read_for_child(body: bytes) -> ToChild:
    """Raises `BadMessage`."""
    message: ToChild = _read(_for_child, body)
    return message


def read_for_owner(body: bytes) -> ToOwner:
    """Raises `BadMessage`."""
    message: ToOwner = _read(_for_owner, body)
    return message


def _read(decoder: "msgspec.msgpack.Decoder[Any]", body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except Exception as error:
        raise BadMessage(f"{len(body)} bytes are no message: {error}") from error


class Frames:
    """Bytes as they come, cut into the bodies of whole frames; one has at most `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting = bytearray()

    @property
    def is_cut(self) -> bool:
        """Whether the beginning of a frame waits for its rest."""
        return bool(self._waiting)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The bodies that are whole now. Raises `BadMessage` for a length beyond the bound."""
        waiting = self._waiting
        waiting += chunk
        while len(waiting) >= HEAD_BYTES:
            length = int.from_bytes(waiting[:HEAD_BYTES], "little")
            if length > self._bytes_max:
                raise BadMessage(f"a frame of {length} bytes, at most {self._bytes_max}")
            end = HEAD_BYTES + length
            if len(waiting) < end:
                return
            body = bytes(waiting[HEAD_BYTES:end])
            del waiting[:end]
            yield body
