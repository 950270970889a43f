"""A fork of the process that opened an engine has its memory, none of its threads, and no say."""

import os

from parkade.errors import ForkedEngine

__all__ = ["check_process", "count"]

count: int = 0
"""How many forks lie between this process and the one that began to count: what tells a fork from
its parent without a call, of the system or of any other kind."""


def _note_fork() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_note_fork)


def check_process(opened_in_pid: int) -> None:
    """Raises `ForkedEngine` in any process but the one that opened the engine."""
    pid = os.getpid()
    if pid != opened_in_pid:
        raise ForkedEngine(opened_in_pid=opened_in_pid, pid=pid)
