"""A fork of the process that opened an engine has its memory, none of its threads, and no say."""

import os

from parkade.errors import ForkedEngine

__all__ = ["check_process"]


def check_process(opened_in_pid: int) -> None:
    """Raises `ForkedEngine` in any process but the one that opened the engine."""
    pid = os.getpid()
    if pid != opened_in_pid:
        raise ForkedEngine(opened_in_pid=opened_in_pid, pid=pid)
