"""Durable appends past the system's cache: what the file then holds, whatever else is written."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parkade.store.direct import APPEND_BYTES_MAX, BLOCK_BYTES, WINDOW_BYTES
from parkade.store.disk import RealDisk

FILE_BYTES = 6 * WINDOW_BYTES
pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT") or not hasattr(os, "RWF_DSYNC"),
    reason="this system has no writes past its cache",
)


class Written:
    """A preallocated file, and what it ought to hold."""

    def __init__(self, path: Path, size_bytes: int = FILE_BYTES) -> None:
        self.disk, self.path = RealDisk(), str(path)
        self.handle = self.disk.open(self.path, create=True)
        self.disk.preallocate(self.handle, size_bytes)
        self.disk.fdatasync(self.handle)
        self.wanted = bytearray(size_bytes)
        self.end = 64

    def append(self, size: int, *, at: int | None = None) -> None:
        """In two buffers, the second of which is empty; behind the last one unless it is said."""
        begin = self.end if at is None else at
        frame = bytes(n % 251 for n in range(begin, begin + size))
        self.disk.pwrite_durable(self.handle, (frame, b""), begin)
        self.wanted[begin : begin + size] = frame
        self.end = begin + size

    def write(self, content: bytes, offset: int) -> None:
        self.disk.pwrite(self.handle, (content,), offset)
        self.wanted[offset : offset + len(content)] = content

    def check(self) -> None:
        """Up to the last append: what lies behind it in its block means nothing."""
        found = self.disk.read_file(self.path)
        assert len(found) == len(self.wanted)
        assert found[: self.end] == self.wanted[: self.end]

    @property
    def is_direct(self) -> bool:
        return bool(fcntl.fcntl(self.handle, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.fixture
def file(tmp_path: Path) -> Written:
    made = Written(tmp_path / "a")
    made.append(8)
    if not made.is_direct:
        pytest.skip("this file system has no writes past its cache")
    return made


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Bytes, offset and flags of each write."""
    calls, real = list[tuple[int, int, int]](), os.pwritev

    def noted(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        calls.append((sum(map(len, buffers)), offset, flags))
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", noted)
    return calls


def test_an_append_is_one_write_of_the_blocks_that_it_touches(
    file: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(monkeypatch)
    file.append(1_000)
    file.append(4_000)
    file.append(16)
    assert calls == [
        (BLOCK_BYTES, 0, os.RWF_DSYNC),
        (2 * BLOCK_BYTES, 0, os.RWF_DSYNC),
        (BLOCK_BYTES, BLOCK_BYTES, os.RWF_DSYNC),
    ]
    file.check()


def test_they_go_on_past_the_end_of_what_is_held_in_memory(file: Written) -> None:
    while file.end + 7_000 < FILE_BYTES:
        file.append(7_000)
    file.check()
    assert file.is_direct


def test_what_is_too_large_or_too_near_the_end_goes_through_the_cache(tmp_path: Path) -> None:
    file = Written(tmp_path / "a", 3 * WINDOW_BYTES - 100)
    file.append(8)
    file.append(APPEND_BYTES_MAX + 1)
    assert not file.is_direct
    file.append(BLOCK_BYTES - file.end % BLOCK_BYTES - 1)
    file.append(APPEND_BYTES_MAX)
    assert file.is_direct
    file.append(len(file.wanted) - file.end)
    assert not file.is_direct
    file.check()


def test_what_else_is_written_to_the_file_stays(file: Written) -> None:
    file.write(b"other", 70)
    file.append(50)
    file.check()
    file.disk.ftruncate(file.handle, FILE_BYTES - BLOCK_BYTES)
    del file.wanted[FILE_BYTES - BLOCK_BYTES :]
    file.append(50)
    assert file.disk.pread(file.handle, 3, 65) == file.wanted[65:68]
    file.append(50, at=file.end + 3 * BLOCK_BYTES)
    file.append(50)
    file.check()


def test_a_file_system_that_has_no_such_writes_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, real = list[int](), os.pwritev

    def refuse(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "not aligned as this one wants it")
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", refuse)
    file = Written(tmp_path / "a")
    for _ in range(3):
        file.append(100)
    assert refused == [0] and not file.is_direct
    file.check()


def test_a_file_that_took_them_goes_on_where_another_does_not(
    file: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard's directory may be on a file system of its own."""
    other, real = file.disk.open(f"{file.path}b", create=True), os.pwritev

    def refuse(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        if fd == other and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such writes")
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", refuse)
    file.disk.preallocate(other, FILE_BYTES)
    file.disk.pwrite_durable(other, (b"other",), 64)
    assert file.disk.pread(other, 5, 64) == b"other"
    file.append(100)
    file.check()


def test_where_it_cannot_be_asked_for_the_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = list[int](), fcntl.fcntl

    def refuse(fd: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL:
            asked.append(fd)
            raise OSError(errno.EINVAL, "no such writes")
        return real(fd, command, value)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    file = Written(tmp_path / "a")
    for _ in range(3):
        file.append(100)
    assert len(asked) == 1
    file.check()


def test_without_memory_for_a_window_the_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: int) -> Any:
        raise OSError(errno.ENOMEM, "too many maps")

    file = Written(tmp_path / "a")
    with monkeypatch.context() as patched:
        patched.setattr("parkade.store.direct.mmap", lacks)
        file.append(100)
        assert not file.is_direct
    file.append(100)
    assert file.is_direct
    file.check()


def test_a_write_that_failed_is_told_and_the_next_one_looks_at_the_file(
    file: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.append(100)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
        with pytest.raises(OSError):
            file.disk.pwrite_durable(file.handle, (b"lost",), file.end)
    file.append(100)
    file.check()


def test_a_write_that_was_cut_short_is_made_whole(
    file: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts, real = [BLOCK_BYTES], os.pwritev

    def cut(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        if cuts:
            buffers = (buffers[0][: cuts.pop()],)
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", cut)
    file.append(3 * BLOCK_BYTES)
    file.append(10)
    assert not cuts
    file.check()


STEPS = st.lists(
    st.one_of(
        st.integers(1, 2 * BLOCK_BYTES),
        st.integers(1, WINDOW_BYTES + BLOCK_BYTES),
        st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 3 * WINDOW_BYTES)),
    ),
    max_size=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(steps=STEPS)
def test_whatever_the_order_the_file_holds_what_was_written(
    tmp_path: Path, steps: list[Any]
) -> None:
    (tmp_path / "a").unlink(missing_ok=True)
    file = Written(tmp_path / "a")
    for step in steps:
        if isinstance(step, int):
            if file.end + step <= FILE_BYTES:
                file.append(step)
        else:
            content, offset = step
            if offset + len(content) <= file.end:
                file.write(content, offset)
    file.check()
    file.disk.close(file.handle)
