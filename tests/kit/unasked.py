"""Failures of an engine that no test has asked for: they are logged, and nobody else would notice.

A shard that fails over an error of our own code is recovered from its disk, and goes on. What a
test breaks, it breaks with an error of the system or one that it raises itself, and our code tells
of damage by exceptions of its own; one of Python's that our code has raised is a fault of it.
"""

import logging
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

import parkade

__all__ = ["taken_unasked", "watch_for_unasked"]

FAILED = 97  # how a child of a test ends where one comes up
PARTS = ("engine", "shard", "store", "wheel")
LOGGERS = ("parkade.engine", "parkade.storage")


def _our_places() -> tuple[str, ...]:
    # The package, and (in a checkout) the folders that are parts of it.
    package = Path(parkade.__file__).parent
    return tuple(f"{place}{os.sep}" for place in (package, *(package.parent / p for p in PARTS)))


class _Unasked(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.is_kept = False
        self._places = _our_places()

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        if error is None or isinstance(error, OSError) or not self._is_ours(error.__traceback__):
            return
        if type(error).__module__ != "builtins":
            return
        text = f"{record.getMessage()}\n{''.join(traceback.format_exception(error))}"
        if not self.is_kept:
            sys.stderr.write(text)
            sys.stderr.flush()
            os._exit(FAILED)
        self.found.append(text)

    def _is_ours(self, trace: TracebackType | None) -> bool:
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and trace.tb_frame.f_code.co_filename.startswith(self._places)


_unasked = _Unasked()


def watch_for_unasked(*, is_kept: bool = False) -> None:
    """From now on. They are kept for `taken_unasked` where it was said once that they are; in a
    process of its own, as tests start them, the first one ends it."""
    _unasked.is_kept = _unasked.is_kept or is_kept
    for name in LOGGERS:
        logging.getLogger(name).addHandler(_unasked)


def taken_unasked() -> list[str]:
    """Those that have come since the last time, with their tracebacks."""
    found, _unasked.found = _unasked.found, []
    return found
