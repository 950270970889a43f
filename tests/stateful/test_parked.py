"""The store against a dict: commits, failing commits, growth, reopening, in any order."""

import errno
import shutil
import tempfile

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kit.parking import (
    DONE,
    PENDING,
    RUNNING,
    Content,
    check_content,
    diff,
    digest,
    idle_batch,
    open_parked,
    pending,
    problems,
    sweep_all,
)
from parkade.store.batch import Claim
from parkade.store.errors import NoRoom, WriteFailed
from parkade.store.parked import Parked

START_MS = 5 << 26
ACTS = (
    "start",
    "start",
    "retry",
    "reschedule",
    "wait in lane",
    "wait for its key",
    "leave and return",
    "finish",
    "finish",
    "change what it was given",
)
POINTS = ("begin", "tickets", "agenda", "before_commit")

delays = st.one_of(
    st.integers(0, 3),
    st.sampled_from([(1 << bits) + off for bits in (16, 22, 26) for off in (-1, 0, 1)]),
    st.integers(0, 1 << 28),
)
picks = st.integers(0, 1_000)
# Some are cut where a page ends (store/bodies.py), some are too small for that or too large.
sizes = st.sampled_from([0, 1, 100, 254, 255, 1_000, 1_350, 2_100, 5_000, 16_383, 16_384, 30_000])
RESULT_SIZES = (6, 0, 900, 1_400, 6_000)


def content(serial: int, size: int) -> bytes:
    """Bytes that tell the ticket, and where in its body they are; the highest bits are among
    them."""
    return b"".join(
        (serial << 40 | 0x80 << 32 | at).to_bytes(8, "big") for at in range(size // 8 + 1)
    )[:size]


class ParkedMachine(RuleBasedStateMachine):
    """`now` is what the shard has decided, `stored` what the store must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="parked-")
        self.failure: tuple[str, Exception] | None = None
        self.is_full = False
        self.parked = self.open(is_new=True)
        self.stored = Content(now_ms=START_MS, settled_ms=START_MS)
        self.now = self.stored.copy()
        self.last_serial = 0
        self.bounced: set[int] = set()
        self.spent: list[bytes] = []

    def open(self, *, is_new: bool = False) -> Parked:
        return open_parked(
            self.directory,
            is_new=is_new,
            map_bytes=1 << 20,
            commit_hook=self.reach,
            free_bytes=lambda path: 0 if self.is_full else 1 << 40,
        )

    def reach(self, point: str) -> None:
        if self.failure is not None and self.failure[0] == point:
            error = self.failure[1]
            self.failure = None
            raise error

    def pick(self, pick: int, state: int) -> int | None:
        serials = [serial for serial, car in self.now.cars.items() if car.state == state]
        return serials[pick % len(serials)] if serials else None

    @initialize()
    def first_commit(self) -> None:
        self.commit()

    @rule(
        count=st.integers(1, 30),
        delay=delays,
        lane=st.integers(1, 3),
        size=sizes,
        expires=st.sampled_from([None, None, 5, 1 << 23]),
        key=st.sampled_from([None, "a", "ab", "ünique"]),
    )
    def submit(
        self, count: int, delay: int, lane: int, size: int, expires: int | None, key: str | None
    ) -> None:
        for _ in range(count):
            self.last_serial += 1
            due_ms = self.now.now_ms + delay
            expiry_ms = None if expires is None else due_ms + expires
            body = b"P" + content(self.last_serial, size)
            car = pending(due_ms, lane, expiry_ms=expiry_ms, body=body, key=key)
            self.now.cars[self.last_serial] = car

    @rule(acts=st.lists(st.tuples(st.sampled_from(ACTS), picks, delays), max_size=20))
    def tickets_live(self, acts: list[tuple[str, int, int]]) -> None:
        for act, pick, delay in acts:
            state = RUNNING if act in ("retry", "finish") else PENDING
            serial = self.pick(pick, state)
            if serial is not None:
                self.change(act, serial, self.now.now_ms + delay)
        if len(acts) % 3:
            self.commit()

    def change(self, act: str, serial: int, due_ms: int) -> None:
        car = self.now.cars[serial]
        match act:
            case "start":
                fence = car.fence + 1
                car = car._replace(state=RUNNING, place="", expiry_ms=None, fence=fence)
            case "retry":
                car = car._replace(state=PENDING, place="agenda", due_ms=due_ms)
            case "reschedule":
                car = car._replace(place="agenda", due_ms=due_ms)
            case "wait in lane":
                car = car._replace(place="lane")
            case "wait for its key":
                if car.key is not None:
                    car = car._replace(place="waits")
            case "change what it was given":
                size = RESULT_SIZES[due_ms % len(RESULT_SIZES)]
                car = car._replace(body=b"P" + content(serial, size))
            case "leave and return":
                self.bounced.add(serial)
            case "finish":
                finished_ms = self.now.now_ms
                size = RESULT_SIZES[due_ms % len(RESULT_SIZES)]
                body = b"R" + content(serial, size) if serial % 2 else b""
                car = car._replace(state=DONE, body=body, finished_ms=finished_ms)
        self.now.cars[serial] = car

    @rule(lane=st.integers(1, 3), count=st.integers(1, 5))
    def forget(self, lane: int, count: int) -> None:
        with self.parked.snapshot() as snapshot:
            task = {1: "mail", 2: "bill", 3: "ship"}[lane]
            before_ms = self.now.now_ms + 1
            ended = snapshot.ended().before(DONE, digest(task), before_ms, limit=count)
        for serial in ended.serials:
            self.now.cars.pop(serial, None)
        self.spent = ended.spent
        self.commit()

    @rule(name=st.integers(1, 4), keep=st.sampled_from([-1, 1, 1 << 23]))
    def claim(self, name: int, keep: int) -> None:
        until_ms = -1 if keep < 0 else self.now.now_ms + keep
        key = name.to_bytes(16, "big")
        self.now.claims[key] = Claim(b"row %d" % self.last_serial, until_ms)

    @rule(name=st.integers(1, 4))
    def give_a_name_up(self, name: int) -> None:
        self.now.claims.pop(name.to_bytes(16, "big"), None)

    @rule(step=delays, back=st.booleans())
    def time_passes(self, step: int, back: bool) -> None:
        self.now.now_ms = max(START_MS, self.now.now_ms + (-step if back else step))
        self.now.settled_ms = max(self.now.settled_ms, self.now.now_ms)

    @rule()
    def commit(self) -> None:
        self.now.lsn += 1
        bounced = frozenset(self.bounced & self.stored.cars.keys())
        batch = diff(self.stored, self.now, bounced)
        batch.spent, self.spent = self.spent, []
        commit = self.parked.commit(batch)
        assert commit.lsn == self.now.lsn
        self.settle()

    def settle(self) -> None:
        self.stored = self.now.copy()
        self.bounced.clear()

    @rule(point=st.sampled_from(POINTS), is_full=st.booleans())
    def a_commit_fails_and_is_made_again(self, point: str, is_full: bool) -> None:
        self.now.lsn += 1
        self.failure = point, OSError(errno.EIO, "no luck")
        self.is_full = is_full
        batch = diff(self.stored, self.now)
        with pytest.raises(NoRoom if is_full else WriteFailed):
            self.parked.commit(batch)
        self.is_full = False
        self.check_all()

    # A process has 47 bits of addresses: some twenty growths would be more.
    @precondition(lambda self: self.parked.stat().map_bytes < 1 << 30)
    @rule(point=st.sampled_from(POINTS))
    def a_commit_that_fills_the_map_grows_it(self, point: str) -> None:
        self.now.lsn += 1
        self.failure = point, lmdb.MapFullError("planted")
        before = self.parked.stat().map_bytes
        commit = self.parked.commit(diff(self.stored, self.now))
        assert commit.has_grown
        assert self.parked.stat().map_bytes > before
        self.stored = self.now.copy()

    @precondition(lambda self: self.stored.lsn > 0)
    @rule(is_closed=st.booleans())
    def reopen(self, is_closed: bool) -> None:
        """Whatever was not committed is decided again by a replay, so `now` stays."""
        if is_closed:
            self.parked.close()
            self.parked = self.open()
        else:
            self.parked.reopen()
        assert self.parked.counters == self.stored.counters()

    @rule()
    def idle(self) -> None:
        self.parked.commit(idle_batch(self.parked, self.now.now_ms))

    @rule(limit=st.integers(1, 50))
    def sweep(self, limit: int) -> None:
        until_ms = self.now.now_ms
        wanted = sorted(
            (car.due_ms, serial, car.first_due_ms, car.lane_number)
            for serial, car in self.stored.cars.items()
            if car.place == "agenda" and car.due_ms <= until_ms
        )
        assert sweep_all(self.parked, until_ms, limit) == wanted

    @rule()
    def check_all(self) -> None:
        with self.parked.snapshot() as snapshot:
            check_content(snapshot, self.stored)
        assert problems(self.parked) == []

    @invariant()
    def the_lsn_is_that_of_the_last_commit(self) -> None:
        assert self.parked.lsn == self.stored.lsn

    def teardown(self) -> None:
        self.check_all()
        self.parked.close()
        shutil.rmtree(self.directory)


TestParked = ParkedMachine.TestCase
# Twice the histories than other machines play: most faults need a ticket that is
# committed three times.
TestParked.settings = settings(
    max_examples=settings().max_examples * 2,
    stateful_step_count=settings().stateful_step_count,
)
