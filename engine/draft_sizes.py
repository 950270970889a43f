"""How many bytes drafts hold and write, and how they are cut into commands of a bounded size."""

from collections.abc import Iterator, Sequence

import msgspec

from parkade.checks import NAME_BYTES_MAX
from parkade.limits import SUBMIT_BYTES_MAX
from parkade.store.record import Submitted

__all__ = ["DRAFT_BYTES", "HELD_BYTES", "PLAIN_BYTES", "cut", "draft_bytes"]

DRAFT_BYTES = 300  # what a plain draft holds beside its payload, about
PLAIN_BYTES = 60  # what it writes beside its payload and its task's name, rather more
HELD_BYTES = DRAFT_BYTES - PLAIN_BYTES
_encode = msgspec.msgpack.Encoder().encode


def draft_bytes(draft: Submitted) -> int:
    """What a draft holds at the door and writes, about, and rather more than less."""
    size = len(draft.payload) + DRAFT_BYTES
    if draft.options is not None:
        size += len(_encode(draft.options))
    if draft.key is not None:
        size += NAME_BYTES_MAX
    return size if draft.unique is None else size + NAME_BYTES_MAX


def cut(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """From where to where these go into one command: all of them, unless that is too large."""
    if 0 < sum(sizes) <= SUBMIT_BYTES_MAX:
        yield 0, len(sizes)
        return
    begin = total = 0
    for place, size in enumerate(sizes):
        if total + size > SUBMIT_BYTES_MAX and place > begin:
            yield begin, place
            begin, total = place, 0
        total += size
    if begin < len(sizes):
        yield begin, len(sizes)
