"""Whether each page of a store's file is used once: by a table, or by the list of free pages.

LMDB reads that list only to write. Damaged, it fails the next commit, or hands out a page that a
table still uses; and no reader sees either. So the pages are walked here as the file has them, in
LMDB's format 0.9 on machines of 64 bits and of this byte order (docs/format.md).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from parkade.store.disk import Disk, Handle, let_go
from parkade.store.errors import Damage, ReadFailed

__all__ = ["walk_pages"]

MAGIC = 0xBEEF_C0DE
NONE = (1 << 64) - 1
DEPTH_MAX = 32

_META = struct.Struct("=IIQQ48s48sQQ")
_TREE = struct.Struct("=IHHQQQQQ")
_PAGE = struct.Struct("=QHHHH")
_NODE = struct.Struct("=HHHH")
_PAGES = struct.Struct("=I")
_WORD = struct.Struct("=Q")

BRANCH, LEAF, OVERFLOW, LEAF_OF_KEYS = 0x01, 0x02, 0x04, 0x20
IN_OVERFLOW, IS_TREE = 0x01, 0x02


class _Meta(NamedTuple):
    page_bytes: int
    free: bytes
    main: bytes
    last_page: int
    commit: int


def walk_pages(disk: Disk, path: str, commit: int) -> None:
    """Walks every page that commit number `commit` has, while a snapshot of it is open.

    Raises `Damage` for a page that is none, is used twice, or is both used and free; `ReadFailed`.
    Says nothing where the owner has committed twice since: then the state is found nowhere.
    """
    try:
        handle = disk.open(path, read_only=True)
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error
    try:
        meta = _meta_of(disk, handle, commit)
        if meta is not None:
            _walk(disk, handle, path, meta)
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error
    finally:
        let_go(disk, handle)


def _walk(disk: Disk, handle: Handle, path: str, meta: _Meta) -> None:
    try:
        _Walk(disk, handle, path, meta).run()
    except (Damage, struct.error) as error:
        # What was read while the owner wrote over it is no damage; the state is gone then.
        if _meta_of(disk, handle, meta.commit) != meta:
            return
        if isinstance(error, Damage):
            raise
        raise Damage(path, 0, f"a page of it ends too early ({error})") from error


def _meta_of(disk: Disk, handle: Handle, commit: int) -> _Meta | None:
    return next((meta for meta in _metas(disk, handle) if meta.commit == commit), None)


def _metas(disk: Disk, handle: Handle) -> Iterator[_Meta]:
    """Both pages that say where the trees begin; the second stands one page behind the first."""
    at = 0
    for _ in range(2):
        content = disk.pread(handle, _META.size, at + _PAGE.size)
        if len(content) < _META.size:
            return
        magic, _, _, _, free, main, last_page, commit = _META.unpack(content)
        page_bytes = _TREE.unpack(free)[0]
        if magic != MAGIC:
            return
        yield _Meta(page_bytes, free, main, last_page, commit)
        at += page_bytes


class _Walk:
    def __init__(self, disk: Disk, handle: Handle, path: str, meta: _Meta) -> None:
        self._disk = disk
        self._handle = handle
        self._path = path
        self._meta = meta
        self._size = meta.page_bytes
        self._met = bytearray(meta.last_page // 8 + 1)

    def run(self) -> None:
        self._meet(0, 2, 0, "meta")
        for content in self._tree(self._meta.main, 0):
            assert content is None
        for content in self._tree(self._meta.free, 0, is_free=True):
            if content is not None:
                self._list(content)

    def _read(self, offset: int, size: int) -> bytes:
        return self._disk.pread(self._handle, size, offset)

    def _damage(self, page: int, reason: str) -> Damage:
        return Damage(self._path, page * self._size, reason)

    def _meet(self, page: int, count: int, told_in: int, what: str) -> None:
        if page + count > self._meta.last_page + 1:
            reason = f"a page of it names page {page}, which is past the end, as {what}"
            raise self._damage(told_in, reason)
        for each in range(page, page + count):
            at, bit = each >> 3, 1 << (each & 7)
            if self._met[at] & bit:
                raise self._damage(told_in, f"it names page {each} as {what}, which has a use")
            self._met[at] |= bit

    def _tree(self, tree: bytes, told_in: int, *, is_free: bool = False) -> Iterator[bytes | None]:
        """Meets the pages of a tree and of those in it; gives the values of the free list."""
        root = _TREE.unpack(tree)[-1]
        left = [] if root == NONE else [(root, told_in, 1)]
        while left:
            page, above, depth = left.pop()
            self._meet(page, 1, above, "a page of a table")
            content = self._read(page * self._size, self._size)
            number, _, flags, lower, _ = _PAGE.unpack_from(content)
            if number != page or not flags & (BRANCH | LEAF) or depth > DEPTH_MAX:
                raise self._damage(page, "it is no page of a table")
            if flags & LEAF_OF_KEYS:
                continue
            ends = range(_PAGE.size, lower, 2)
            for (at,) in (struct.unpack_from("=H", content, end) for end in ends):
                low, high, kind, key_bytes = _NODE.unpack_from(content, at)
                if flags & BRANCH:
                    left.append((low | high << 16 | kind << 32, page, depth + 1))
                    continue
                value_at = at + _NODE.size + key_bytes
                yield from self._value(content, value_at, low | high << 16, kind, page, is_free)

    def _value(
        self, content: bytes, at: int, size: int, kind: int, page: int, is_free: bool
    ) -> Iterator[bytes | None]:
        if kind & IS_TREE:
            yield from self._tree(content[at : at + _TREE.size], page)
        elif kind & IN_OVERFLOW:
            (first,) = _WORD.unpack_from(content, at)
            yield from self._overflow(first, size, page, is_free)
        elif is_free:
            yield content[at : at + size]

    def _overflow(self, first: int, size: int, page: int, is_free: bool) -> Iterator[bytes]:
        front = self._read(first * self._size, _PAGE.size)
        number, _, flags, *_ = _PAGE.unpack(front)
        (count,) = _PAGES.unpack_from(front, _PAGE.size - _PAGES.size)
        if number != first or not flags & OVERFLOW or count * self._size < size + _PAGE.size:
            raise self._damage(first, "it is no page of a long value")
        self._meet(first, count, page, "a page of a long value")
        if is_free:
            yield self._read(first * self._size + _PAGE.size, size)

    def _list(self, content: bytes) -> None:
        (count,) = _WORD.unpack_from(content)
        for at in range(1, count + 1):
            (page,) = _WORD.unpack_from(content, at * _WORD.size)
            self._meet(page, 1, 0, "free")
