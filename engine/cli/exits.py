"""Exit codes of the command line, and which error ends in which."""

from parkade.errors import ParkadeError

__all__ = [
    "DAMAGED",
    "INTERRUPTED",
    "IN_USE",
    "NEGATIVE",
    "NOT_FOUND",
    "REFUSED",
    "TIMED_OUT",
    "TOO_NEW",
    "USAGE",
    "exit_code_of",
]

NEGATIVE = 1  # the answer is no: problems were found, something was lost
USAGE = 2
NOT_FOUND = 3
IN_USE = 4  # the directory has an owner, or needs one that does not answer
DAMAGED = 5
TIMED_OUT = 6
REFUSED = 7
TOO_NEW = 8  # a newer parkade wrote it
INTERRUPTED = 130

_BY_CODE = {
    "PK-101": IN_USE,
    "PK-104": TOO_NEW,
    "PK-105": DAMAGED,
    "PK-107": USAGE,
    "PK-111": NOT_FOUND,
    "PK-202": USAGE,
    "PK-203": USAGE,
    "PK-210": USAGE,
    "PK-301": NOT_FOUND,
    "PK-404": TIMED_OUT,
    "PK-406": NOT_FOUND,
    "timeout": TIMED_OUT,
    "unreachable": IN_USE,
}


def exit_code_of(error: ParkadeError) -> int:
    """By its code, which a running engine sends along with its text."""
    return _BY_CODE.get(error.code, NEGATIVE)
