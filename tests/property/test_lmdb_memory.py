"""The LMDB in memory, held against the real library."""

import tempfile
from typing import Any

import lmdb
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.lmdb_memory import MemoryFiles, Shelf
from parkade.store.environment import open_environment

KEYS = st.integers(0, 12).map(lambda n: b"k" + n.to_bytes(2, "big"))
VALUES = st.integers(0, 5).map(lambda n: n.to_bytes(8, "big"))
MOVES = st.sampled_from(
    (
        "first", "last", "get", "set_key", "set_range", "set_range_dup", "next", "prev", "last_dup",
        "prev_dup", "delete", "append", "iternext", "iterprev", "iternext_dup", "iterprev_dup",
        "getmulti",
    )
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, VALUES),
        st.tuples(st.just("remove"), KEYS, VALUES | st.just(b"")),
        st.tuples(MOVES, KEYS, VALUES),
    ),
    max_size=30,
)


def perform(transaction: Any, cursor: Any, table: Any, is_dup: bool, step: Any) -> Any:
    name, key, value = step
    if name == "put":
        return transaction.put(key, value, db=table)
    if name == "remove":
        return transaction.delete(key, value, db=table)
    if (
        name.endswith("_dup")
        and (not is_dup or not bytes(cursor.key()))
        and name != "set_range_dup"
    ):
        return None
    if name == "set_range_dup":
        found = cursor.set_range_dup(key, value) if is_dup else None
        if found is False:
            cursor.last()  # the store never goes on from where one found nothing
        return found
    if name == "get":
        value = cursor.get(key)
        return None if value is None else bytes(value)
    if name in ("set_key", "set_range"):
        return getattr(cursor, name)(key)
    if name == "getmulti":
        return None if is_dup else [(bytes(k), bytes(v)) for k, v in cursor.getmulti([key, b"k"])]
    if name == "append":
        return cursor.putmulti([(key, value)], append=True)
    if name == "delete" and not bytes(cursor.key()):
        return None
    if name in ("iternext", "iterprev"):
        if not bytes(cursor.key()):
            return None
        return [(bytes(k), bytes(v)) for k, v in getattr(cursor, name)()]
    if name in ("iternext_dup", "iterprev_dup"):
        return [bytes(v) for v in getattr(cursor, name)()]
    return getattr(cursor, name)()


def run(environment: Any, is_dup: bool, transactions: list[list[Any]]) -> list[Any]:
    """What each step answers and where the cursor then stands; each list is a transaction."""
    table = environment.open_db(b"rows", create=True, dupsort=is_dup, dupfixed=is_dup)
    seen: list[Any] = []
    for number, steps in enumerate(transactions):
        try:
            with environment.begin(write=True, buffers=True) as transaction:
                cursor = transaction.cursor(table)
                for step in steps:
                    changes = step[0] in ("put", "remove", "append")
                    seen.append(perform(transaction, cursor, table, is_dup, step))
                    if changes:  # the store never goes on from a cursor that others moved under
                        cursor = transaction.cursor(table)
                    elif not step[0].startswith("iter"):
                        seen.append((bytes(cursor.key()), bytes(cursor.value())))
                if number % 3 == 2:
                    raise InterruptedError
        except InterruptedError:
            seen.append("aborted")
        with environment.begin(buffers=True) as transaction:
            rows = [(bytes(k), bytes(v)) for k, v in transaction.cursor(table)]
            seen.append((rows, transaction.stat(table)["entries"]))
    return seen


@settings(max_examples=150, deadline=None)
@given(is_dup=st.booleans(), transactions=st.lists(STEPS, max_size=4))
def test_it_answers_as_lmdb_does(is_dup: bool, transactions: list[list[Any]]) -> None:
    memory = MemoryFiles(Shelf()).open("/x", map_bytes=1 << 20, is_new=True, sync=True)
    with tempfile.TemporaryDirectory() as directory:
        real = open_environment(directory, map_bytes=1 << 20, is_new=True, sync=False)
        try:
            assert run(memory, is_dup, transactions) == run(real, is_dup, transactions)
        finally:
            real.close()


def test_a_commit_that_fails_is_there_whole_or_not_at_all() -> None:
    for how, is_there in (("before", False), ("after", True)):
        shelf = Shelf()
        environment = MemoryFiles(shelf).open("/x", map_bytes=1 << 20, is_new=True, sync=True)
        table = environment.open_db(b"rows")
        shelf.fail_commit = lambda _, how=how: (how, 5)  # type: ignore[misc]
        try:
            with environment.begin(write=True) as transaction:
                transaction.put(b"a", b"1", db=table)
        except lmdb.Error as error:
            assert error.code == 5
        else:
            raise AssertionError("it did not fail")
        shelf.fail_commit = lambda _: None
        shelf.lose_process()
        again = MemoryFiles(shelf).open("/x", map_bytes=1 << 20, is_new=False, sync=True)
        with again.begin() as transaction:
            assert (transaction.get(b"a", db=table) == b"1") is is_there


def test_a_map_that_is_full_says_so_and_keeps_what_was() -> None:
    environment = MemoryFiles(Shelf()).open("/x", map_bytes=1 << 15, is_new=True, sync=True)
    table = environment.open_db(b"rows")
    try:
        with environment.begin(write=True) as transaction:
            for number in range(1_000):
                transaction.put(number.to_bytes(8, "big"), b"x" * 100, db=table)
    except lmdb.MapFullError:
        pass
    else:
        raise AssertionError("it took more than it had room for")
    with environment.begin() as transaction:
        assert transaction.stat(table)["entries"] == 0
    environment.set_mapsize(1 << 20)
    with environment.begin(write=True) as transaction:
        transaction.put(b"a", b"1", db=table)
