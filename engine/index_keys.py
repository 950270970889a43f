"""The keys of the secondary indexes: a kind byte, digests of names, then the serial, big-endian.

`s` task and state, `d` state of all tasks (not kept for pending tickets: they are the table itself),
`k` key. A digest may collide: who walks an index looks at the head again.
"""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

from parkade.shard.states import PENDING

__all__ = ["index_keys", "key_prefix", "state_prefix", "task_prefix"]


@lru_cache(maxsize=4_096)
def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


@lru_cache(maxsize=4_096)
def task_prefix(task: str, state: int) -> bytes:
    return b"s" + _digest(task) + bytes((state,))


def state_prefix(state: int) -> bytes:
    return b"d" + bytes((state,))


def key_prefix(key: str) -> bytes:
    return b"k" + _digest(key)


def index_keys(serial: bytes, task: str, state: int, key: str | None) -> Iterator[bytes]:
    """Every index key of a ticket in `state`; `serial` is its 8 big-endian bytes."""
    yield task_prefix(task, state) + serial
    if state != PENDING:
        yield state_prefix(state) + serial
    if key is not None:
        yield key_prefix(key) + serial
