"""The agenda against a sorted multiset, whatever is written, split, cleared and swept."""

import itertools
from collections import Counter
from collections.abc import Iterator

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parkade.store import agenda as agenda_module
from parkade.store.agenda import AgendaWriter, Upkeep
from parkade.store.entry import EXPIRY, NEGATIVE, SERIAL_MAX, Position, pack_entry
from parkade.store.sweep import AgendaReader, Sweep

BASE_MS = 5 << 30  # a border of all levels
DAY_MS = 86_400_000
PATH = "agenda under test"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    directory = tmp_path_factory.mktemp("agenda")
    with lmdb.open(str(directory), max_dbs=1, map_size=1 << 26, sync=False) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def small_blobs() -> Iterator[None]:
    """Blobs of four entries, so that a handful of tickets fills many of them, and is scattered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agenda_module, "BLOB_ENTRIES_MAX", 4)
        patch.setattr(agenda_module, "SMALL_ENTRIES", 2)
        patch.setattr(agenda_module, "SMALL_BLOBS_MAX", 3)
        patch.setattr(agenda_module, "NEGATIVES_MAX", 6)
        patch.setattr(agenda_module, "PATROL_BLOBS", 3)
        patch.setattr(agenda_module, "LOOSE_BUCKETS_MIN", 2)
        patch.setattr(agenda_module, "LOOSE_EACH_MAX", 3)
        patch.setattr(agenda_module, "LOOSE_BLOBS_MAX", 5)
        patch.setattr(agenda_module, "LOOSE_ENTRIES_MAX", 12)
        yield


class Agenda:
    """An agenda in a table of its own, and the multiset that it should be."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self.environment = environment
        self.table = environment.open_db(b"agenda")
        with environment.begin(write=True) as transaction:
            transaction.drop(self.table, delete=False)
        self.upkeep = Upkeep()
        self.next_blob = 1
        self.model: Counter[bytes] = Counter()

    def commit(self, entries: list[bytes], now_ms: int, budget: int = 1_000) -> tuple[bool, bool]:
        """Append, split and clear; returns whether there is more to split, and to clear."""
        for entry in entries:
            if entry[28] & NEGATIVE:
                self.model[positive(entry)] -= 1
            else:
                self.model[entry] += 1
        self.model = +self.model
        with self.environment.begin(write=True, buffers=True) as transaction:
            writer = AgendaWriter(
                transaction,
                self.table,
                PATH,
                now_ms=now_ms,
                next_blob=self.next_blob,
                upkeep=self.upkeep,
            )
            writer.append(entries)
            has_refine_due = writer.refine(budget)
            has_upkeep = writer.tidy(budget)
            self.next_blob = writer.next_blob
        return has_refine_due, has_upkeep

    def sweep(self, after: Position, until_ms: int, limit: int) -> Sweep:
        with self.environment.begin(buffers=True) as transaction:
            return AgendaReader(transaction, self.table, PATH).sweep(after, until_ms, limit)

    def first_position(self, after: Position) -> Position | None:
        with self.environment.begin(buffers=True) as transaction:
            return AgendaReader(transaction, self.table, PATH).first_position(after)

    def content(self, want: int = 3) -> list[bytes]:
        with self.environment.begin(buffers=True) as transaction:
            slices = AgendaReader(transaction, self.table, PATH).walk(want)
            return list(itertools.chain.from_iterable(slices))

    def blobs(self) -> int:
        with self.environment.begin() as transaction:
            return transaction.stat(self.table)["entries"]

    def expected(self) -> list[bytes]:
        return sorted(self.model.elements())


def positive(entry: bytes) -> bytes:
    return entry[:28] + bytes([entry[28] & ~NEGATIVE])


def negative(entry: bytes) -> bytes:
    return entry[:28] + bytes([entry[28] | NEGATIVE])


def position(entry: bytes) -> Position:
    return int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:16], "big")


def borders(bits: int) -> st.SearchStrategy[int]:
    return st.builds(
        lambda slots, off: BASE_MS + (slots << bits) + off, st.integers(-2, 2), st.integers(-1, 1)
    )


dues = st.one_of(
    borders(16),
    borders(22),
    borders(26),
    borders(30),
    st.integers(BASE_MS - 3, BASE_MS + 3),
    st.integers(BASE_MS - (1 << 27), BASE_MS + (1 << 27)),
)
new_entries = st.builds(
    pack_entry,
    dues,
    st.integers(1, 6),
    st.sampled_from([0, BASE_MS]),
    st.integers(1, 2),
    st.sampled_from([0, 0, 0, EXPIRY]),
)
nows = st.one_of(
    dues,
    st.integers(BASE_MS - 3 * DAY_MS, BASE_MS + 3 * DAY_MS),
    st.integers(BASE_MS - 40 * DAY_MS, BASE_MS + 40 * DAY_MS),
)
# (entries that come, which of those that are there go, now, budget of splitting and of clearing)
commits = st.tuples(
    st.lists(new_entries, max_size=12),
    st.lists(st.integers(0, 1_000), max_size=10),
    nows,
    st.integers(1, 20),
)
histories = st.lists(commits, min_size=1, max_size=12)


def play(agenda: Agenda, history: list[tuple[list[bytes], list[int], int, int]]) -> None:
    """Each ticket has one entry of a kind at a time: what is there already is not added again."""
    for entries, leavers, now_ms, budget in history:
        there = agenda.expected()
        fresh = [entry for entry in dict.fromkeys(entries) if entry not in agenda.model]
        gone = {there[index % len(there)] for index in leavers} if there else set()
        agenda.commit(fresh + [negative(entry) for entry in gone], now_ms, budget)


def sweep_all(agenda: Agenda, after: Position, until_ms: int, limit: int) -> list[bytes]:
    """Sweep from a position to a time as a host does, committing when a bucket must be split."""
    found: list[bytes] = []
    while True:
        swept = agenda.sweep(after, until_ms, limit)
        marks = [pack_entry(due, serial, 0, 0, EXPIRY) for due, serial in swept.expiries]
        found += sorted([pack_entry(*entry) for entry in swept.entries] + marks)
        assert swept.position >= after
        if swept.position == (until_ms, SERIAL_MAX):
            return found
        if swept.needs_refine:
            agenda.commit([], until_ms, budget=7)
        else:
            assert swept.position > after
        after = swept.position


def without_lanes_of_marks(entries: list[bytes]) -> list[bytes]:
    """As a sweep shows them: of a mark it tells time and ticket, and no entry is told twice."""
    shown = [
        pack_entry(*position(entry), 0, 0, EXPIRY) if entry[28] & EXPIRY else entry
        for entry in entries
    ]
    return sorted(shown)


@given(history=histories)
def test_the_agenda_sums_to_what_was_written_and_not_removed(
    environment: lmdb.Environment, history: list[tuple[list[bytes], list[int], int, int]]
) -> None:
    agenda = Agenda(environment)
    for commit in history:
        play(agenda, [commit])
        assert agenda.content() == agenda.expected()


@given(
    history=histories,
    until_ms=nows,
    limit=st.integers(1, 9),
    after=st.tuples(dues, st.integers(0, 7)),
)
def test_a_sweep_in_slices_of_any_size_meets_every_entry_once_and_in_order(
    environment: lmdb.Environment,
    history: list[tuple[list[bytes], list[int], int, int]],
    until_ms: int,
    limit: int,
    after: Position,
) -> None:
    agenda = Agenda(environment)
    play(agenda, history)
    found = sweep_all(agenda, after, max(until_ms, after[0] + 1), limit)
    until_ms = max(until_ms, after[0] + 1)
    wanted = [e for e in agenda.expected() if after < position(e) and position(e)[0] <= until_ms]
    assert sorted(found) == without_lanes_of_marks(wanted)
    assert [position(entry) for entry in found] == sorted(position(entry) for entry in found)


@given(history=histories, until_ms=nows, limit=st.integers(1, 9))
def test_a_sweep_is_complete_up_to_its_position_even_before_anything_is_split(
    environment: lmdb.Environment,
    history: list[tuple[list[bytes], list[int], int, int]],
    until_ms: int,
    limit: int,
) -> None:
    agenda = Agenda(environment)
    play(agenda, history)
    swept = agenda.sweep((0, 0), until_ms, limit)
    wanted = [entry for entry in agenda.expected() if position(entry) <= swept.position]
    assert len(swept.entries) + len(swept.expiries) == len(wanted)
    assert swept.position <= (until_ms, SERIAL_MAX)
    if not swept.needs_refine and len(wanted) < limit:
        assert swept.position == (until_ms, SERIAL_MAX)


@given(history=histories, after=st.one_of(st.just((0, 0)), st.tuples(dues, st.integers(0, 7))))
def test_the_first_position_is_the_least_one_whatever_is_split(
    environment: lmdb.Environment,
    history: list[tuple[list[bytes], list[int], int, int]],
    after: Position,
) -> None:
    agenda = Agenda(environment)
    play(agenda, history)
    later = [position(entry) for entry in agenda.expected() if position(entry) > after]
    assert agenda.first_position(after) == min(later, default=None)


@given(history=histories, now_ms=nows, budget=st.integers(1, 20))
def test_an_agenda_whose_tickets_have_all_left_shrinks_to_nothing(
    environment: lmdb.Environment,
    history: list[tuple[list[bytes], list[int], int, int]],
    now_ms: int,
    budget: int,
) -> None:
    agenda = Agenda(environment)
    play(agenda, history)
    agenda.commit([negative(entry) for entry in agenda.expected()], now_ms, budget)
    later_ms = BASE_MS + 30 * DAY_MS  # all of it is split by then, so that all of it can meet
    for _ in range(200):
        agenda.commit([], later_ms, budget)
        if not agenda.blobs():
            break
    assert agenda.blobs() == 0


@given(history=histories, restarts=st.integers(1, 3))
def test_what_is_left_to_clear_is_found_again_by_a_process_that_knows_nothing(
    environment: lmdb.Environment,
    history: list[tuple[list[bytes], list[int], int, int]],
    restarts: int,
) -> None:
    agenda = Agenda(environment)
    play(agenda, history)
    agenda.commit([negative(entry) for entry in agenda.expected()], BASE_MS, budget=1)
    later_ms = BASE_MS + 30 * DAY_MS
    for _ in range(restarts):
        agenda.upkeep = Upkeep()
        agenda.commit([], later_ms, budget=5)
    for _ in range(200):
        agenda.commit([], later_ms, budget=5)
        if not agenda.blobs():
            break
    assert agenda.blobs() == 0
