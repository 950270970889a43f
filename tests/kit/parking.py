"""A store's content as plain dicts, and the batches that lead from one content to another.

`Content` is what a store should hold; `diff` makes the batch of a checkpoint by comparing two of
them, so a commit that fails needs no undoing: the next batch starts from what is stored.
"""

import copy
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parkade.store.batch import Batch, Claim, pack_ended
from parkade.store.entry import EXPIRY, NEGATIVE, SERIAL_MAX, pack_entry
from parkade.store.parked import Parked, ParkedReader
from parkade.store.snapshot import Snapshot
from parkade.store.verify import HeadFacts, Problem, verify

PENDING, RUNNING, DONE, DEAD = range(4)
SALT = b"salty"
LANES = {1: b"mail", 2: b"bill", 3: b"ship"}
TASKS = {1: "mail", 2: "bill", 3: "ship"}


class Car(NamedTuple):
    """A ticket as these tests know one. `place`: 'agenda', 'lane', 'waits' (it has a key) or ''
    when it is not pending."""

    lane_number: int
    state: int
    due_ms: int
    first_due_ms: int
    place: str
    expiry_ms: int | None = None
    finished_ms: int = 0
    body: bytes = b""
    fence: int = 0
    key: str | None = None

    @property
    def task(self) -> str:
        return TASKS[self.lane_number]

    def entry(self, serial: int, flags: int = 0) -> bytes:
        return pack_entry(self.due_ms, serial, self.first_due_ms, self.lane_number, flags)

    def mark(self, serial: int, flags: int = 0) -> bytes:
        assert self.expiry_ms is not None
        first_due_ms, lane_number = self.first_due_ms, self.lane_number
        return pack_entry(self.expiry_ms, serial, first_due_ms, lane_number, flags | EXPIRY)

    @property
    def listed_under(self) -> bytes:
        return listing_prefix(self.task, self.state)

    def index_keys(self, serial: int) -> tuple[bytes, ...]:
        return (index_prefix(self.state) + serial.to_bytes(8, "big"),)


@dataclass
class Content:
    """What a store holds at an LSN."""

    lsn: int = 0
    epoch: int = 1
    now_ms: int = 0
    settled_ms: int = 0
    cars: dict[int, Car] = field(default_factory=dict)
    claims: dict[bytes, Claim] = field(default_factory=dict)

    def copy(self) -> "Content":
        return copy.deepcopy(self)

    def counters(self) -> dict[tuple[str, int], int]:
        counts: dict[tuple[str, int], int] = {}
        for car in self.cars.values():
            counts[car.task, car.state] = counts.get((car.task, car.state), 0) + 1
        return counts


def listing_prefix(task: str, state: int) -> bytes:
    return b"s" + digest(task) + bytes([state])


def index_prefix(state: int) -> bytes:
    return b"g" + bytes([state])


def digest(task: str) -> bytes:
    return task.encode().ljust(8, b".")


def encode(car: Car) -> bytes:
    return json.dumps(car._replace(body=b"")._asdict(), default=bytes.decode).encode()


def decode(serial: int, head: bytes) -> HeadFacts | None:
    """What a head says, for `verify`."""
    try:
        car = Car(**json.loads(head))
    except (ValueError, TypeError):
        return None
    return HeadFacts(
        task=car.task,
        state=car.state,
        is_pending=car.state == PENDING,
        due_ms=car.due_ms,
        first_due_ms=car.first_due_ms,
        key=car.key,
        expiry_ms=car.expiry_ms,
        listed_under=car.listed_under,
        index_keys=car.index_keys(serial),
    )


def pending(due_ms: int, lane_number: int = 1, **more: Any) -> Car:
    car = Car(lane_number, PENDING, due_ms, due_ms, "agenda", body=b"Ppayload")
    return car._replace(**more)


def diff(old: Content, new: Content, bounced: frozenset[int] = frozenset()) -> Batch:
    """The batch that leads from `old` to `new`. Tickets in `bounced` leave their position and take
    it again, as a retry at the same due time does."""
    batch = Batch(
        lsn=new.lsn,
        epoch=new.epoch,
        now_ms=new.now_ms,
        settled_ms=new.settled_ms,
        counters=new.counters(),
        lane_names=dict(LANES),
    )
    for serial in old.cars.keys() | new.cars.keys():
        before, after = old.cars.get(serial), new.cars.get(serial)
        if before != after or serial in bounced:
            _change(batch, serial, before, after)
    for name in old.claims.keys() | new.claims.keys():
        if old.claims.get(name) != new.claims.get(name):
            batch.uniques[name] = new.claims.get(name)
    return batch


def _change(batch: Batch, serial: int, before: Car | None, after: Car | None) -> None:
    batch.heads[serial] = None if after is None else encode(after)
    if before is not None:
        batch.unlisted[before.listed_under].append(serial)
        batch.index_deletes += before.index_keys(serial)
        if before.expiry_ms is not None:
            batch.leaves.append(before.mark(serial, NEGATIVE))
        if before.place:
            if before.key is None:
                batch.leaves.append(before.entry(serial, NEGATIVE))
            else:
                batch.keyed_leaves.append((before.key, before.entry(serial, NEGATIVE)))
    if after is None:
        return
    batch.listed[after.listed_under].append(serial)
    batch.index_puts += after.index_keys(serial)
    if before is None or before.body != after.body:
        batch.bodies[serial] = after.body or None
    for fence in range(before.fence if before else 0, after.fence):
        batch.history[serial, fence + 1] = b"attempt %d" % (fence + 1)
    if after.place == "waits":
        assert after.key is not None
        batch.wait_rows.append((after.key, after.entry(serial)))
    elif after.place:
        (batch.agenda if after.place == "agenda" else batch.lane_rows).append(after.entry(serial))
    if after.expiry_ms is not None:
        batch.agenda.append(after.mark(serial))
    if after.state == DONE and (before is None or before.state != DONE):
        batch.ended.append(pack_ended(DONE, digest(after.task), after.finished_ms, serial))


def open_parked(directory: object, *, is_new: bool = True, **options: object) -> Parked:
    """A store without syncs, which no test of these needs: they end no machine."""
    settings: dict[str, object] = {"salt": SALT, "shard": 0, "sync": False, **options}
    return Parked.open(str(directory), is_new=is_new, **settings)  # type: ignore[arg-type]


def problems(reader: ParkedReader, *, deep: bool = True) -> list[Problem]:
    with reader.snapshot() as snapshot:
        return list(verify(snapshot, decode, deep=deep))


def sweep_all(parked: Parked, until_ms: int, limit: int = 7) -> list[tuple[int, int, int, int]]:
    """Every entry up to a time, splitting what has to be split."""
    found: list[tuple[int, int, int, int]] = []
    after = (0, 0)
    while after < (until_ms, SERIAL_MAX):
        with parked.snapshot() as snapshot:
            swept = snapshot.sweep(after, until_ms, limit)
        found += swept.entries
        after = swept.position
        if swept.needs_refine:
            parked.commit(idle_batch(parked, until_ms))
    return found


def idle_batch(parked: Parked, now_ms: int) -> Batch:
    """Nothing but upkeep, as of a time."""
    return Batch(
        lsn=parked.lsn,
        epoch=parked.epoch,
        now_ms=now_ms,
        settled_ms=parked.settled_ms,
        counters=parked.counters,
        memo=parked.memo,
    )


def check_content(snapshot: Snapshot, content: Content) -> None:
    """Every table but the agenda says what the content says; `verify` compares the rest."""
    assert snapshot.lsn == content.lsn
    assert snapshot.counters() == content.counters()
    cars = content.cars
    heads = snapshot.heads(cars)
    assert heads.found == {serial: encode(car) for serial, car in cars.items()}
    assert not heads.damaged
    bodies = snapshot.bodies(cars)
    assert bodies.found == {serial: car.body for serial, car in cars.items() if car.body}
    for serial, car in cars.items():
        fences = [(fence, b"attempt %d" % fence) for fence in range(1, car.fence + 1)]
        assert snapshot.history(serial) == fences
    for lane_number, task in TASKS.items():
        rows = sorted(
            (car.first_due_ms, serial, car.due_ms)
            for serial, car in cars.items()
            if car.place == "lane" and car.lane_number == lane_number
        )
        assert snapshot.lane_rows(lane_number, limit=100_000) == rows
        assert snapshot.lane_row_counts().get(lane_number, 0) == len(rows)
        for key in {car.key for car in cars.values() if car.key is not None}:
            waiting = sorted(
                (car.first_due_ms, serial, car.due_ms)
                for serial, car in cars.items()
                if (car.place, car.lane_number, car.key) == ("waits", lane_number, key)
            )
            assert snapshot.wait_rows(key, lane_number, limit=100_000) == waiting
        for state in (PENDING, RUNNING, DONE, DEAD):
            serials = [s for s, car in cars.items() if (car.task, car.state) == (task, state)]
            newest_first = sorted(serials, reverse=True)
            listings, prefix = snapshot.listings(), listing_prefix(task, state)
            assert list(listings.newest(prefix, 1 << 64)) == newest_first
            assert list(listings.oldest(prefix)) == newest_first[::-1]
        done = sorted(
            (car.finished_ms, serial)
            for serial, car in cars.items()
            if (car.task, car.state) == (task, DONE)
        )
        ended = snapshot.ended().before(DONE, digest(task), 1 << 50, limit=100_000)
        assert sorted(ended.serials) == sorted(serial for _, serial in done)
    for state in (PENDING, RUNNING, DONE, DEAD):
        newest_first = sorted((s for s, car in cars.items() if car.state == state), reverse=True)
        assert snapshot.page(index_prefix(state), limit=100_000) == newest_first
    queues = {(str(car.key), car.lane_number) for car in cars.values() if car.place == "waits"}
    assert sorted(snapshot.wait_queues()) == sorted(queues)
    assert snapshot.wait_row_count() == sum(car.place == "waits" for car in cars.values())
    for name, claim in content.claims.items():
        row = snapshot.unique(name)
        is_over = 0 <= claim.until_ms <= content.settled_ms
        assert row == claim.row or (is_over and row is None)


def harm_last_blob(parked: Parked) -> None:
    """Changes a byte of the last blob of the agenda, so that its checksum tells."""
    with (
        parked._environment.begin(write=True) as transaction,
        transaction.cursor(parked._tables.agenda) as cursor,
    ):
        cursor.last()
        key, value = cursor.item()
        transaction.put(key, b"\1" + value[1:], db=parked._tables.agenda)
