"""Who writes to a shard's journal, in small: its pen, who waits for it, and the core's passes."""

import errno
import gc
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kit.between import struck_at_every_step
from kit.children import until
from kit.clock import ManualClock
from parkade import caller_frames
from parkade.caller_frames import (
    CROWD_RECORDS_MAX,
    CROWD_RECORDS_MIN,
    FRAME_BYTES_MAX,
    FRAME_RECORDS_MAX,
    PASS_WAITS_MAX,
    WRITTEN_BYTES_MAX,
    WRITTEN_MAX,
    CallerFrames,
    Line,
    Pen,
    SubmitInterrupted,
    Written,
)
from parkade.errors import SubmitReentered
from parkade.latencies import Latencies
from parkade.lone_frames import COMPANY_FRAMES, COMPANY_MS, SLOW_MS, SLOW_PAUSE_MS_MIN
from parkade.store.errors import WriteFailed
from parkade.store.record import Submitted, decode_records, encode_records

NEAR, FAR = 0, 3_600_000


def draft(delay_ms: int = FAR, serial: int = 1, size: int = 0) -> Submitted:
    return Submitted(serial, 0, "note", 1_000 + delay_ms, 1_000, bytes(size))


class Journal:
    """It notes what is appended."""

    def __init__(self, on_append: Callable[[], object] = lambda: None) -> None:
        self.bodies: list[bytes] = []
        self.has_spare = self.is_wide = True
        self._on_append = on_append

    def has_room(self) -> bool:
        return self.has_spare

    def has_place(self, _: int) -> bool:
        return self.is_wide

    def append(self, body: bytes, count: int) -> int:
        self.bodies.append(body)
        self._on_append()
        return count


def shard(journal: Journal | None = None, **changes: Any) -> Any:
    standing: dict[str, Any] = {
        "number": 0,
        "is_open": True,
        "frame_in_flight": False,
        "records": [],
        "io": SimpleNamespace(is_idle=True, latencies=Latencies()),
        "room": SimpleNamespace(is_there=True),
        "core": SimpleNamespace(has_room=True),
        "host": SimpleNamespace(has_changed_room=lambda: True, failure=lambda _, error: error),
        "pen": Pen(),
        "journal": journal or Journal(),
        "poison": lambda _: None,
    }
    made: Any = SimpleNamespace(**standing | changes)
    made.written = Written(made)
    return made


def frames(clock: ManualClock | None = None, *, is_called: bool = False) -> CallerFrames:
    made = CallerFrames(
        clock or ManualClock(), lambda: None, is_called=lambda _: is_called, is_heard=lambda: False
    )
    made.is_allowed = True
    return made


def test_only_a_shard_with_all_on_disk_and_room_for_more_takes_it() -> None:
    assert frames().write(shard(), draft())
    narrow, last = Journal(), Journal()
    narrow.is_wide = last.has_spare = False
    others = [
        shard(is_open=False),
        shard(frame_in_flight=True),
        shard(records=[None]),
        shard(io=SimpleNamespace(is_idle=False)),
        shard(room=SimpleNamespace(is_there=False)),
        shard(core=SimpleNamespace(has_room=False)),
        shard(host=SimpleNamespace(has_changed_room=lambda: False)),
        shard(narrow),
        shard(last),
    ]
    assert [frames().write(other, draft()) for other in others] == [False] * len(others)
    assert not any(other.journal.bodies for other in others)


def test_what_only_a_pass_changes_is_looked_at_once_between_two() -> None:
    looks: list[None] = []

    def look() -> bool:
        looks.append(None)
        return True

    made, journal = frames(), Journal()
    taker = shard(
        journal,
        host=SimpleNamespace(has_changed_room=look),
    )
    for passes in (1, 2):
        assert all(made.write(taker, draft()) for _ in range(3))
        assert len(looks) == passes
        made.take_in()
    journal.has_spare = False  # its room comes to an end without a pass
    journal.has_room = lambda: True  # type: ignore[method-assign]
    assert all(made.write(taker, draft()) for _ in range(3))
    assert len(looks) == 5


def test_who_looks_whether_it_may_write_is_in_the_midst_of_it() -> None:
    made, refused = frames(), list[BaseException]()

    def finalize() -> bool:
        try:
            made.check("ticket.info")
        except SubmitReentered as error:
            refused.append(error)
        return True

    assert made.write(shard(host=SimpleNamespace(has_changed_room=finalize)), draft())
    made.check("ticket.info")
    assert len(refused) == 1


def test_nobody_writes_in_a_pass_of_the_core_nor_after_the_end() -> None:
    made, open_shard = frames(), shard()
    made.shut_door()
    assert not made.write(open_shard, draft())
    made.open_door()
    assert made.write(open_shard, draft())
    made.end()
    assert not made.write(open_shard, draft())


def serials_in(journal: Journal) -> list[int]:
    records = [record for body in journal.bodies for record in decode_records(body)]
    return [record.serial for record in records if isinstance(record, Submitted)]


def in_threads(*calls: Callable[[], object]) -> "list[Future[object]]":
    """Each on a thread of its own."""
    pool = ThreadPoolExecutor(len(calls))
    told = [pool.submit(call) for call in calls]
    pool.shutdown(wait=False)
    return told


def waiting_for_the_pen(made: CallerFrames, taker: Any, count: int) -> "list[Future[object]]":
    """So many callers, who wait until the pen is let go."""
    taker.pen.lock.acquire()
    told = in_threads(*(partial(made.write, taker, draft(serial=n)) for n in range(count)))
    until(lambda: len(taker.pen.lines) == count)
    return told


def test_those_who_wait_for_the_pen_are_written_in_one_frame() -> None:
    made, taker = frames(), shard()
    told = waiting_for_the_pen(made, taker, 5)
    drafts = [line.draft for line in taker.pen.lines]
    taker.pen.lock.release()
    assert [one.result() for one in told] == [True] * 5
    assert taker.journal.bodies == [encode_records(drafts)]
    assert (len(taker.written), taker.pen.written, taker.pen.lines) == (5, 5, {})


def test_those_whose_frame_is_written_leave_while_the_next_one_is() -> None:
    begun, go = threading.Event(), threading.Event()

    def pause() -> None:
        if len(taker.journal.bodies) == 1:
            begun.set()
            go.wait()
        else:
            until(lambda: all(one.done() for one in first))

    made, taker = frames(), shard(Journal(pause))
    first = waiting_for_the_pen(made, taker, 3)
    taker.pen.lock.release()
    begun.wait()
    (later,) = in_threads(lambda: made.write(taker, draft(serial=9)))
    until(lambda: len(taker.pen.lines) == 4)
    go.set()
    assert later.result() and all(one.result() for one in first)
    assert [len(decode_records(body)) for body in taker.journal.bodies] == [3, 1]


def test_where_the_first_at_a_gate_is_ended_by_a_signal_the_others_write() -> None:
    signals, waits = [KeyboardInterrupt()], threading.Lock()

    class Lock:
        """Of a pen: whoever waits for it first is ended there."""

        def __enter__(self) -> None:
            waits.acquire()
            if signals:
                raise signals.pop()

        def __exit__(self, *_: object) -> None:
            waits.release()

    made, taker = frames(), shard()
    taker.pen.lock = Lock()
    waits.acquire()
    told = in_threads(*(partial(made.write, taker, draft(serial=n)) for n in range(3)))
    until(lambda: len(taker.pen.lines) == 3)
    waits.release()
    until(lambda: any(one.done() for one in told))
    waits.release()  # a signal that comes in a lock's own call leaves it taken here
    errors = Counter(type(one.exception()) for one in told)
    assert errors == {KeyboardInterrupt: 1, type(None): 2}
    assert taker.pen.written == 2 and not taker.pen.lines and not made._writing


def test_where_many_write_a_frame_the_next_come_there_until_they_are_few() -> None:
    made, taker, other = frames(), shard(), shard()
    assert made.write(taker, draft()) and made.crowd_part is None
    told = waiting_for_the_pen(made, taker, CROWD_RECORDS_MIN)
    taker.pen.lock.release()
    assert all(one.result() for one in told)
    assert made._crowd is taker.pen
    told = waiting_for_the_pen(made, other, CROWD_RECORDS_MIN)
    other.pen.lock.release()
    assert all(one.result() for one in told) and made._crowd is taker.pen
    assert made.write(taker, draft()) and made.crowd_part is None


def write_together(made: CallerFrames, taker: Any, count: int) -> None:
    lines = [Line(draft(serial=n)) for n in range(1, count)]
    taker.pen.lines.update(dict.fromkeys(lines))
    assert made.write(taker, draft())


def test_a_crowd_goes_on_to_another_shard() -> None:
    made, taker, other = frames(), shard(), shard()
    size = 2 * CROWD_RECORDS_MIN
    for _ in range(1 + CROWD_RECORDS_MAX // size):  # the first frame is what makes it one
        write_together(made, taker, size)
    assert made.crowd_part is None
    write_together(made, other, size)
    assert made._crowd is other.pen


def test_a_pass_ends_a_crowd() -> None:
    made, taker = frames(), shard()
    write_together(made, taker, CROWD_RECORDS_MIN)
    assert made.crowd_part == 0
    made.take_in()
    assert made.crowd_part is None


def test_a_frame_has_no_more_of_them_than_its_bound() -> None:
    made, taker = frames(), shard()
    told = waiting_for_the_pen(made, taker, FRAME_RECORDS_MAX + 3)
    taker.pen.lock.release()
    assert all(one.result() for one in told)
    assert len(taker.journal.bodies) == 2
    assert taker.pen.written == FRAME_RECORDS_MAX + 3


def test_a_frame_has_no_more_bytes_than_its_bound_but_for_one_that_is_larger() -> None:
    made, taker = frames(), shard()
    sizes = [FRAME_BYTES_MAX // 2, FRAME_BYTES_MAX // 2, 1, FRAME_BYTES_MAX + 1, 1]
    lines = [Line(draft(serial=n, size=size)) for n, size in enumerate(sizes)]
    taker.pen.lines.update(dict.fromkeys(lines))
    assert made.write(taker, draft(serial=9))
    assert [line.is_written for line in lines] == [True] * 5
    assert [len(decode_records(body)) for body in taker.journal.bodies] == [2, 1, 1, 2]


def test_what_there_is_no_room_for_goes_to_the_core_and_what_comes_behind_it_does_not() -> None:
    made, taker = frames(), shard()
    large = Line(draft(serial=2, size=WRITTEN_BYTES_MAX + 1))
    taker.pen.lines[large] = None
    assert made.write(taker, draft())
    assert (large.is_written, taker.pen.lines) == (False, {})
    assert [len(decode_records(body)) for body in taker.journal.bodies] == [1]


def test_who_waits_once_more_while_a_pass_ends_waits_for_the_next_one() -> None:
    made, opened = frames(), list[int]()

    def gate(number: int) -> Any:
        def release() -> None:
            opened.append(number)
            if number < 3:
                made._waiting.append(gate(number + 1))

        return SimpleNamespace(release=release)

    made._waiting.append(gate(1))
    made.open_door()
    assert opened == [1]
    made.open_door()
    assert opened == [1, 2]


def test_a_pass_begins_whatever_garbage_is_collected_meanwhile() -> None:
    """Its finalizers let other threads go on, and those begin to write, or end."""
    made = frames()

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            made._writing[-1 - len(made._writing)] = Pen()

    thresholds = gc.get_threshold()
    try:
        for allocations in range(1, 12):
            made._writing = {thread: Pen() for thread in range(64)}
            gc.collect()
            gc.disable()
            Cycle()
            gc.set_threshold(allocations)
            gc.enable()
            made.shut_door()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def test_all_that_were_in_a_frame_that_failed_hear_of_it() -> None:
    def fail() -> None:
        raise WriteFailed("journal", errno.EIO)

    made, taker = frames(), shard(Journal(fail))
    told = waiting_for_the_pen(made, taker, 3)
    taker.pen.lock.release()
    assert [type(one.exception()) for one in told] == [WriteFailed] * 3
    assert not taker.pen.lines


def test_a_signal_that_ends_who_writes_leaves_the_others_of_the_frame_no_success() -> None:
    signals = [KeyboardInterrupt()]

    def interrupt() -> None:
        if signals:
            raise signals.pop()

    made, taker = frames(), shard(Journal(interrupt))
    told = waiting_for_the_pen(made, taker, 3)
    taker.pen.lock.release()
    errors = Counter(type(one.exception()) for one in told)
    assert errors == {KeyboardInterrupt: 1, SubmitInterrupted: 2}
    assert len(taker.journal.bodies) == 1 and not taker.pen.lines


def test_wherever_a_signal_ends_who_writes_the_others_hear_what_came_of_theirs() -> None:
    def prepare() -> tuple[Callable[[], object], Callable[[], object]]:
        made, taker = frames(), shard()
        others = [Line(draft(serial=serial)) for serial in (2, 3)]
        taker.pen.lines.update(dict.fromkeys(others))

        def check() -> None:
            assert not made._writing and not taker.pen.lock.locked()
            is_lost = taker.written._is_begun
            assert made.write(taker, draft(serial=4)) is not is_lost
            serials = serials_in(taker.journal)
            assert len(serials) == len(set(serials))
            for line in others:
                is_there = line.draft.serial in serials
                if line.error is None:
                    assert line.is_written is is_there
                    assert is_there or is_lost
                else:
                    assert is_lost and type(line.error) is SubmitInterrupted

        return lambda: made.write(taker, draft()), check

    assert struck_at_every_step(prepare) > 50


def test_who_gives_up_leaves_nothing_for_the_next_to_write() -> None:
    made, taker = frames(), shard()
    told = waiting_for_the_pen(made, taker, 3)
    made._is_core_in = True  # a pass wants to begin, and nobody here has patience
    taker.pen.lock.release()
    assert [one.result() for one in told] == [False] * 3
    assert taker.journal.bodies == [] and not taker.pen.lines
    made.open_door()
    assert made.write(taker, draft())
    assert taker.journal.bodies == [encode_records([draft()])]


def test_a_pass_waits_for_who_is_writing_and_who_comes_meanwhile_for_the_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caller_frames, "PASS_WAIT_S", 20.0)  # however busy the machine is
    go = threading.Event()
    made, taker = frames(), shard(Journal(go.wait))
    made.is_patient = True
    (writer,) = in_threads(lambda: made.write(taker, draft()))
    until(lambda: bool(taker.journal.bodies))
    (core,) = in_threads(made.shut_door)
    until(lambda: made._is_core_in)
    (later,) = in_threads(lambda: made.write(taker, draft()))
    until(lambda: bool(made._waiting))
    assert not core.done()
    go.set()
    assert writer.result() and core.result() is None
    assert len(taker.journal.bodies) == 1
    made.open_door()
    assert later.result() and len(taker.journal.bodies) == 2


def test_behind_a_frame_of_the_cores_a_caller_waits_for_the_pass_that_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caller_frames, "PASS_WAIT_S", 20.0)  # however busy the machine is
    made, taker = frames(), shard(frame_in_flight=True)
    made.is_patient = True
    (told,) = in_threads(lambda: made.write(taker, draft()))
    until(lambda: bool(made._waiting))
    made.shut_door()
    taker.frame_in_flight = False
    made.open_door()
    assert told.result()


def test_a_caller_who_waited_in_vain_is_the_cores_and_so_are_the_next() -> None:
    made, taker = frames(), shard(frame_in_flight=True)
    made.is_patient = True
    waits: list[None] = []
    made._await_pass = lambda shard: waits.append(None)  # type: ignore[method-assign]
    assert [made.write(taker, draft()) for _ in range(4)] == [False] * 4
    assert len(waits) == 2 * PASS_WAITS_MAX, "the second and the third did not wait"


def test_at_half_of_what_may_be_written_the_core_is_woken() -> None:
    woken: list[int] = []
    made, taker = frames(), shard()
    made._wake = lambda: woken.append(len(taker.written))
    for n in range(WRITTEN_MAX // 2):
        assert made.write(taker, draft(serial=n))
    assert woken == [WRITTEN_MAX // 2]


def test_who_was_sent_on_to_the_core_is_no_company() -> None:
    asked: list[int] = []

    def is_called(beside: int) -> bool:
        asked.append(beside)
        return False

    clock = ManualClock()
    made, busy = frames(clock), shard(records=[None])
    taker = shard(Journal(lambda: clock.advance(COMPANY_MS)))
    made._is_called = is_called
    for _ in range(3):
        assert not made.write(busy, draft())
    assert made.write(taker, draft())
    assert asked == [3]


def test_where_somebody_calls_the_core_meanwhile_the_next_go_there() -> None:
    clock = ManualClock()
    made = frames(clock, is_called=True)
    slow = shard(Journal(lambda: clock.advance(COMPANY_MS)))
    answers = [made.write(slow, draft()) for _ in range(COMPANY_FRAMES + 2)]
    assert answers == [True, *[False] * COMPANY_FRAMES, True]
    quick = frames(clock, is_called=True)
    assert all(quick.write(shard(), draft()) for _ in range(3))


def test_a_disk_that_is_slow_makes_nobody_wait_with_the_pen_again_for_a_while() -> None:
    clock = ManualClock()
    made = frames(clock)
    slow = shard(Journal(lambda: clock.advance(SLOW_MS)))
    quick = shard()
    assert made.write(slow, draft())
    clock.advance(SLOW_PAUSE_MS_MIN - 1)
    assert not made.write(quick, draft())
    clock.advance(1)
    assert made.write(quick, draft())
