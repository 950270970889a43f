"""Durable appends that go past the system's page cache.

What is on the disk when the call returns gains nothing from a copy in memory, and writing that copy
out costs more than the write itself. A write past the cache is one of whole blocks, so the block in
which the last append ended is kept here and written again with the next, as the system does with
its own copy.
"""

import fcntl
import os
from collections.abc import Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

__all__ = ["APPEND_BYTES_MAX", "BLOCK_BYTES", "WINDOW_BYTES", "DirectAppends"]

BLOCK_BYTES = 4096
WINDOW_BYTES = 16 * BLOCK_BYTES  # in memory, of each file that is appended to
APPEND_BYTES_MAX = WINDOW_BYTES - BLOCK_BYTES


class DirectAppends:
    """Of one open file, from a place in it on, one behind the other; nobody else writes to it
    meanwhile. From `stop` on it takes writes of any kind again."""

    __slots__ = ("_end", "_handle", "_size_bytes", "_start", "_window")

    def __init__(self, handle: int, offset: int) -> None:
        """Raises OSError where the system has no such writes."""
        self._handle = handle
        self._size_bytes = os.fstat(handle).st_size
        # Of private pages: they are aligned, and a fork has its own.
        self._window = memoryview(mmap(-1, WINDOW_BYTES, MAP_PRIVATE | MAP_ANONYMOUS))
        self._start = offset - offset % BLOCK_BYTES  # of the window, in the file
        self._end = offset  # of the last append; below 0: nobody knows what came of it
        os.preadv(handle, (self._window[: offset - self._start],), self._start)
        self._set_direct(is_on=True)

    def write(self, buffers: Sequence[bytes], offset: int) -> bool:
        """Whether they are on the disk, `APPEND_BYTES_MAX` at most; else they do not follow the
        last one, or go on past the file's last whole block. Raises OSError."""
        if offset != self._end:
            return False
        frame = b"".join(buffers)
        begin, end = offset - self._start, offset - self._start + len(frame)
        if end > WINDOW_BYTES:
            self._move(begin - begin % BLOCK_BYTES)
            begin, end = offset - self._start, offset - self._start + len(frame)
        first, last = begin - begin % BLOCK_BYTES, end + -end % BLOCK_BYTES
        if self._start + last > self._size_bytes:
            return False
        self._end = -1
        self._window[begin:end] = frame
        blocks = self._window[first:last]
        if os.pwritev(self._handle, (blocks,), self._start + first, os.RWF_DSYNC) < last - first:
            return False
        self._end = offset + len(frame)
        return True

    def stop(self) -> None:
        """Raises OSError."""
        self._set_direct(is_on=False)

    def _move(self, by: int) -> None:
        """The window goes on in the file; what it had in its last block comes along."""
        kept = bytes(self._window[by:])
        self._window[:] = kept + bytes(by)
        self._start += by

    def _set_direct(self, *, is_on: bool) -> None:
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if is_on else flags & ~os.O_DIRECT
        fcntl.fcntl(self._handle, fcntl.F_SETFL, flags)
