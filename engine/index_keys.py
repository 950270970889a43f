"""The prefixes under which the store has serials: a kind byte, then digests of names.

`s` task and state, a listing of every ticket; `k` key, `c` target, `t` a tag that was opted in, `g`
group of a dead ticket, which are indexes: there the serial, big-endian, ends a row's key. A digest
may collide: who walks any of them looks at the head again. `d`, a state, is nowhere in the store:
it stands for the listings of all tasks in that state.
"""

from functools import lru_cache
from hashlib import blake2b

from parkade.shard.ticket import Ticket
from parkade.store.record import Options

__all__ = [
    "GROUP_KIND", "LISTING_KIND", "STATE_KIND", "group_prefix", "index_keys", "key_prefix",
    "state_prefix", "tag_name_prefix", "tag_prefix", "target_prefix", "task_digest", "task_prefix",
]  # fmt: skip

LISTING_KIND, STATE_KIND, GROUP_KIND = b"s", b"d", b"g"


@lru_cache(maxsize=4_096)
def task_digest(task: str) -> bytes:
    return blake2b(task.encode(), digest_size=8).digest()


@lru_cache(maxsize=4_096)
def task_prefix(task: str, state: int) -> bytes:
    return LISTING_KIND + task_digest(task) + bytes((state,))


@lru_cache(maxsize=16)
def state_prefix(state: int) -> bytes:
    return STATE_KIND + bytes((state,))


def key_prefix(key: str) -> bytes:
    return b"k" + blake2b(key.encode(), digest_size=8).digest()


@lru_cache(maxsize=4_096)
def target_prefix(target: str) -> bytes:
    return b"c" + blake2b(target.encode(), digest_size=8).digest()


def tag_name_prefix(name: str) -> bytes:
    """What the prefixes of all values of a tag begin with."""
    return b"t" + blake2b(name.encode(), digest_size=8).digest()


@lru_cache(maxsize=4_096)
def tag_prefix(name: str, value: str) -> bytes:
    return tag_name_prefix(name) + blake2b(value.encode(), digest_size=8).digest()


def group_prefix(group: bytes) -> bytes:
    return GROUP_KIND + group


def index_keys(serial_key: bytes, ticket: Ticket, group: bytes | None = None) -> list[bytes]:
    """Every index key of a ticket in `group`; `serial_key` is its serial's 8 big-endian bytes."""
    keys: list[bytes] = []
    if ticket.key is not None:
        keys.append(key_prefix(ticket.key) + serial_key)
    if group is not None:
        keys.append(GROUP_KIND + group + serial_key)
    if ticket.options is not None:
        keys += _option_keys(serial_key, ticket.options)
    return keys


def _option_keys(serial_key: bytes, options: Options) -> list[bytes]:
    keys: list[bytes] = []
    if options.target is not None:
        keys.append(target_prefix(options.target) + serial_key)
    if options.indexed is not None and options.tags is not None:
        tags = options.tags
        names = [name for name in options.indexed if name in tags]
        keys += [tag_prefix(name, tags[name]) + serial_key for name in names]
    return keys
