"""What dead tickets have in common: task, type of error, and the message without its particulars.

Two messages that differ in numbers, ids or quoted names alone have one shape. A ticket is given its
group when it dies, and the group stands in its head: a later version may see shapes otherwise, and
still finds what an earlier one has grouped.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from parkade.shard.ticket import Ticket

__all__ = ["GROUP_BYTES", "SHAPE_CHARS_MAX", "cause_of", "group_of", "group_of_dead", "shape_of"]

GROUP_BYTES: Final = 8
SHAPE_CHARS_MAX: Final = 200
_READ_CHARS_MAX: Final = 1_000  # a shape is made on the core thread: of the beginning alone

# An alternative begins where a word does or takes all it can: none is tried twice over.
_PARTICULAR: Final = re.compile(
    r"""
      (?<!\w)(?P<quote>['"`])(?:(?!(?P=quote)).)+(?P=quote)(?!\w)
    | (?<![0-9A-Za-z])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])
    | (?<![0-9A-Za-z])0[xX][0-9a-fA-F]+
    | (?<![0-9A-Za-z])\d++(?:[.:]\d++)*+(?![0-9A-Za-z])
    | (?<![0-9A-Za-z])(?=[a-fA-F]{0,64}[0-9])[0-9a-fA-F]{6,}(?![0-9A-Za-z])
    | (?<![0-9A-Za-z])(?=[A-Za-z]{0,64}[0-9])[0-9A-Za-z]{16,}+(?![0-9A-Za-z])
    | \d+(?:[.:]\d+)*
    """,
    re.VERBOSE,
)
_LISTED: Final = re.compile(r"(?:'#'|#)(?:[,;] ?(?:'#'|#))+")


def shape_of(message: str) -> str:
    """The message with every number, id and quoted part as `#`, lists of such as one, on one line
    of at most 200 characters. An id is a UUID, a hexadecimal one, or 16 and more letters and digits
    with a digit among them, as those of tickets. The shape of a shape is itself."""
    while True:
        words = " ".join(message[:_READ_CHARS_MAX].split())
        shape = _LISTED.sub("#", _PARTICULAR.sub(_masked, words))[:SHAPE_CHARS_MAX]
        # What is cut or masked may bare another particular. Each round shortens, or leaves fewer
        # digits, or is the last.
        if shape == message:
            return shape
        message = shape


@lru_cache(maxsize=512)  # most of those that die at one time die of one thing
def group_of(task: str, error_type: str, message: str) -> bytes:
    """The group's 8 bytes: the same for every message of one shape, in every process."""
    digest = blake2b(digest_size=GROUP_BYTES)
    for text in (task, error_type, shape_of(message)):
        encoded = text.encode()
        # Lengths first, so that no two ways of cutting the same text give the same bytes.
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    return digest.digest()


def group_of_dead(ticket: Ticket) -> bytes:
    """The group of a ticket that is dead now."""
    return group_of(ticket.task, *cause_of(ticket))


def cause_of(ticket: Ticket) -> tuple[str, str]:
    """(type, message) of what a dead ticket died of. Without an error of its own, as when the
    process died, the type is empty and the message is the reason."""
    if ticket.error is None or ticket.why == "crashed":
        return "", ticket.why or ""
    return ticket.error.type, ticket.error.message


def _masked(found: "re.Match[str]") -> str:
    return "'#'" if found["quote"] else "#"
