"""Submits that their callers write themselves, while the core thread rests."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from kit.clock import ManualClock
from kit.engines import hold_handlers, make, rig, runtime_of, when
from kit.failing import key_of, keyed, recovered, statuses
from kit.faulty import FaultyDisk
from parkade import Engine, EngineClosed, StorageError, Task, Ticket
from parkade.caller_frames import WRITTEN_MAX
from parkade.errors import SubmitReentered
from parkade.shard.states import PENDING
from parkade.shard.ticket import parse_id
from parkade.store.disk import Handle


def noted(engine: Engine) -> "Task[[int], int]":
    def note(n: int) -> int:
        return n

    return engine.task(name="note")(note)


def at_rest(engine: Engine) -> None:
    when(engine, lambda runtime: all(shard.io.is_idle for shard in runtime.shards))


def written(engine: Engine) -> int:
    return sum(shard.pen.written for shard in runtime_of(engine).shards)


# ------------------------------------------------------------------------- whose a submit is


def test_a_sleeper_takes_no_pass_and_no_other_thread(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        later = noted(engine).options(delay="1h")
        at_rest(engine)
        host = runtime_of(engine).host
        steps = host.steps
        tickets = [later.submit(n) for n in range(20)]
        assert (host.steps - steps, written(engine)) == (0, 20)
        assert sum(shard.journal.last_lsn for shard in host.shards) == 20
        assert sum(shard.core.lsn for shard in host.shards) == 0
        assert [ticket.info().state for ticket in tickets] == ["scheduled"] * 20
        assert sum(shard.core.lsn for shard in host.shards) == 20
        assert engine.stats().scheduled == 20


def test_what_an_engine_does_not_run_need_not_be_far(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = noted(engine)
        at_rest(engine)
        ticket = task.submit(1)
        assert written(engine) == 1
        assert ticket.info().state == "ready"


def test_what_is_due_soon_or_has_a_name_is_the_cores(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        task = noted(engine)
        at_rest(engine)
        task.options(delay="2s").submit(1)
        first = task.options(delay="1h", unique="one").submit(2)
        again = task.options(delay="1h", unique="one").submit(2)
        assert (again.id, again.created, written(engine)) == (first.id, False, 0)


def test_tickets_of_a_key_keep_their_order_whoever_writes_them(tmp_path: Path) -> None:
    clock, ran = ManualClock(), list[int]()
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(name="note", key="one")
        def note(n: int) -> None:
            ran.append(n)

        at_rest(engine)
        tickets = [
            note.options(delay="1h" if n % 2 else "2s").submit(n) for n in range(6)
        ]  # by a caller and by the core in turns
        assert written(engine) > 0
        clock.advance(3_600_000)
        for ticket in tickets:
            ticket.result("20s")
    assert ran == [0, 2, 4, 1, 3, 5]


def test_after_so_many_the_core_has_a_pass(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock(), shards=1) as engine:
        later = noted(engine).options(delay="1h")
        at_rest(engine)
        for n in range(3 * WRITTEN_MAX):
            later.submit(n)
        when(engine, lambda runtime: runtime.shards[0].core.lsn >= 3 * WRITTEN_MAX)
        assert written(engine) >= WRITTEN_MAX


def test_watchers_hear_of_it_as_of_any_other(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        later = noted(engine).options(delay="1h")
        at_rest(engine)
        with engine.events("submitted") as events:
            ids = [later.submit(n).id for n in range(3)]
            assert written(engine) == 3
            heard = iter(events)
            assert sorted(next(heard).ticket_id or "" for _ in ids) == sorted(ids)


def test_an_engine_that_has_stopped_takes_none(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    later = noted(engine).options(delay="1h")
    with engine:
        at_rest(engine)
        frames = runtime_of(engine).host.caller_frames
        later.submit(1)
    with pytest.raises(EngineClosed):
        later.submit(2)
    assert not frames.is_allowed


def test_what_was_written_after_the_last_pass_comes_before_what_is_called_then(
    tmp_path: Path,
) -> None:
    """A read that comes back has something decided, and memory would number it as its journal
    numbers what a caller wrote."""
    engine = make(tmp_path / "data", run=False).start()
    later, seen = noted(engine), list[tuple[int, int]]()
    at_rest(engine)
    host = runtime_of(engine).host
    end = host.caller_frames.end

    def look() -> None:
        lsns = [(shard.core.lsn, shard.journal.last_lsn) for shard in host.shards]
        seen.extend(lsn for lsn in lsns if lsn != (0, 0))

    def written_late() -> None:
        caller = threading.Thread(target=later.options(delay="1h").submit, args=(1,))
        caller.start()
        caller.join()
        host.post(look)
        end()

    host.caller_frames.end = written_late  # type: ignore[method-assign]
    host.end()
    assert seen == [(1, 1)]
    engine.stop()


# ------------------------------------------------------------------------- what comes of it


def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", clock=ManualClock()) as engine:
        later = noted(engine).options(delay="1h")
        at_rest(engine)
        ids = {later.submit(n).id for n in range(10)}
        assert written(engine) == 10
        runtime_of(engine).abandon()
    with make(tmp_path / "data", durability="process", clock=ManualClock()) as engine:
        assert {info.id for info in engine.find(limit=50)} == ids


def test_a_disk_that_fails_is_told_to_the_caller_and_the_shard_recovers(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = make(tmp_path / "data", durability="process")
    with rig(engine, disk=disk):
        later = keyed(noted(engine).options(delay="1h"), 0)
        at_rest(engine)
        kept = later.submit(1)
        disk.break_next("write", "shard-000/journal")
        with pytest.raises(StorageError):
            later.submit(2)
        recovered(engine)
        more = later.submit(3)
        assert {info.id for info in engine.find(limit=50)} >= {kept.id, more.id}
        assert statuses(engine) == ["open", "open"]


class InterruptingDisk(FaultyDisk):
    """A signal comes before or after a write, in the thread that writes."""

    def __init__(self, *, comes_first: bool, raised: type[BaseException]) -> None:
        super().__init__()
        self.comes_first = comes_first
        self.raised = raised
        self.is_armed = False

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        is_armed, self.is_armed = self.is_armed, False
        if is_armed and self.comes_first:
            raise self.raised
        super().pwrite(handle, buffers, offset)
        if is_armed:
            raise self.raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError, LookupError])
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_signal_in_the_midst_costs_nobody_anything(
    tmp_path: Path, comes_first: bool, raised: type[BaseException]
) -> None:
    disk = InterruptingDisk(comes_first=comes_first, raised=raised)
    engine = make(tmp_path / "data", durability="process", clock=ManualClock())
    with rig(engine, disk=disk):
        later = keyed(noted(engine).options(delay="1h"), 0)
        at_rest(engine)
        kept = [later.submit(1).id]
        for count in (1, 2, 3):  # however often: its shard is not given up
            disk.is_armed = True
            with pytest.raises(raised):
                later.submit(-count)
            recovered(engine, count)
            at_rest(engine)
            kept.append(later.submit(count).id)
        found = {info.id for info in engine.find(limit=50)}
        assert found >= set(kept)
        assert len(found) == len(kept) + (0 if comes_first else 3)
        assert statuses(engine) == ["open", "open"]
    with make(tmp_path / "data", durability="process", clock=ManualClock()) as engine:
        assert {info.id for info in engine.find(limit=50)} == found


class HandlingDisk(FaultyDisk):
    """A signal handler runs before a write, in the thread that writes."""

    handler: Callable[[], object] | None = None

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        super().pwrite(handle, buffers, offset)


def test_whatever_waits_for_the_core_in_the_midst_of_a_submit_of_its_thread_is_refused(
    tmp_path: Path,
) -> None:
    disk, refused = HandlingDisk(), list[BaseException]()
    engine = make(tmp_path / "data", durability="process", clock=ManualClock())
    with rig(engine, disk=disk):
        task = noted(engine)
        later = task.options(delay="1h")
        at_rest(engine)
        first = later.submit(0)
        first.info()
        calls: list[Callable[[], object]] = [
            lambda: later.submit(2),
            lambda: task.submit(2),
            lambda: later.options(unique="one").submit(2),
            lambda: engine.submit_many([later.call(2), task.call(2)]),
            first.info,
            first.cancel,
            engine.stats,
            lambda: engine.pause(task="note"),
            engine.stop,
        ]

        def handle(call: Callable[[], object]) -> None:
            try:
                call()
            except SubmitReentered as error:
                refused.append(error)

        for number, call in enumerate(calls, 1):
            disk.handler = partial(handle, call)
            later.submit(1)
            assert disk.handler is None
            assert [error.code for error in refused] == ["PK-211"] * number
        assert later.submit(3).created
        assert engine.stats().scheduled == len(calls) + 2


def test_a_finalizer_that_runs_on_a_thread_of_the_engine_stops_nobody(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", clock=ManualClock()) as engine:
        task, refused = noted(engine), list[BaseException]()
        runtime = runtime_of(engine)
        ticket = task.options(delay="1h").submit(1)

        def finalize() -> None:
            for call in (lambda: task.submit(2), ticket.info, engine.stats):
                try:
                    call()
                except SubmitReentered as error:
                    refused.append(error)

        runtime.host.call(finalize)
        shard = runtime.shards[0]
        runtime.host.post(shard.io.call, finalize, lambda _, error: None)
        when(engine, lambda _: len(refused) == 6)
        assert task.submit(3).result("20s") == 3


def test_threads_that_submit_at_once_lose_nothing(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", shards=3) as engine, hold_handlers() as gate:
        engine.task(name="busy")(gate.enter)
        task = noted(engine)
        ids, lock = list[str](), threading.Lock()

        def submit(number: int) -> None:
            for n in range(40):
                ticket = task.options(delay="1h" if (n + number) % 3 else 0).submit(n)
                with lock:
                    ids.append(ticket.id)

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gate.open()
        shards = runtime_of(engine).host.shards
        when(engine, lambda _: all(one.durable_lsn == one.core.lsn for one in shards))
        runtime_of(engine).abandon()
    with make(tmp_path / "data", durability="process", shards=3, run=False) as engine:
        found = {info.id for info in engine.find(task="note", limit=500)}
        assert found == set(ids)


def test_a_key_is_no_name(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        later = noted(engine).options(delay="1h", key=key_of(1))
        at_rest(engine)
        ticket = later.submit(1)
        assert written(engine) == 1
        assert ticket.info().key == key_of(1)
        counted = runtime_of(engine).shards[1].core.by_task["note"]
        assert counted[PENDING] == 1


def test_what_has_no_key_goes_where_many_write(tmp_path: Path) -> None:
    def shards_of(tickets: "Sequence[Ticket[int]]") -> set[int]:
        return {parsed.part % 2 for ticket in tickets if (parsed := parse_id(ticket.id))}

    with make(tmp_path / "data", clock=ManualClock()) as engine:
        later = noted(engine).options(delay="1h")
        at_rest(engine)
        frames = runtime_of(engine).host.caller_frames
        crowd = runtime_of(engine).shards[1].pen
        crowd.part, crowd.crowd_left, crowd.size = 7, 100, 100
        frames._crowd = crowd
        assert shards_of([later.submit(n) for n in range(20)]) == {1}
        assert shards_of([later.options(key=key_of(0)).submit(1)]) == {0}
