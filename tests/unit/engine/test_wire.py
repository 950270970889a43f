"""Messages between an engine and its children: whole, byte by byte, cut, hostile."""

import msgspec
import pytest

from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText
from parkade.wire import (
    BadMessage,
    Begun,
    Bye,
    Ended,
    Frames,
    Order,
    Ready,
    Stop,
    ToChild,
    ToOwner,
    Unfit,
    Welcome,
    pack,
    read_for_child,
    read_for_owner,
)

TICKET = Ticket(1, 2, "add", 1, 3, 4, 5, fence=6)
TO_CHILD: list[ToChild] = [
    Welcome(["app.py", "-v"], None, "/srv/app.py", 1_000),
    Order(TICKET, "id", 1, "add", ["app"], b"\x80"),
    Stop(1, 6, "no more", is_for_good=True),
    Bye(),
]
TO_OWNER: list[ToOwner] = [
    Ready(),
    Begun(1, 6),
    Ended(Outcome(1, 6, "transient", error=ErrorText("OSError", "gone", "trace")), 12),
    Unfit(1, 6, ErrorText("ImportError", "no module")),
]


def test_messages_come_out_as_they_went_in_whole_or_byte_by_byte() -> None:
    for messages, read in ((TO_CHILD, read_for_child), (TO_OWNER, read_for_owner)):
        stream = b"".join(map(pack, messages))
        whole, single = Frames(10_000), Frames(10_000)
        assert [read(body) for body in whole.feed(stream)] == messages
        bodies = [body for byte in stream for body in single.feed(bytes([byte]))]
        assert [read(body) for body in bodies] == messages
        assert not whole.is_cut and not single.is_cut


def test_a_frame_that_is_cut_waits_for_its_rest() -> None:
    stream = pack(Begun(1, 6))
    for cut in range(1, len(stream)):
        frames = Frames(1_000)
        assert list(frames.feed(stream[:cut])) == []
        assert frames.is_cut
        assert [read_for_owner(body) for body in frames.feed(stream[cut:])] == [Begun(1, 6)]


def test_a_length_beyond_the_bound_is_refused_before_its_body_comes() -> None:
    frames = Frames(100)
    with pytest.raises(BadMessage, match="a frame of 101 bytes, at most 100"):
        list(frames.feed((101).to_bytes(4, "little")))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",
        msgspec.msgpack.encode([99]),
        msgspec.msgpack.encode([17, "one", 6]),
        msgspec.msgpack.encode([18, {"serial": 1}, 0]),
        msgspec.msgpack.encode({"type": 17}),
        msgspec.msgpack.encode([1, ["x"], None, None, 5]),  # a Welcome is not for the owner
    ],
)
def test_what_is_no_message_for_the_owner_is_told_so(body: bytes) -> None:
    with pytest.raises(BadMessage, match="are no message"):
        read_for_owner(body)
