"""Tickets brought to every state through the public API, and everything that may happen to them.

What is done to a ticket and what becomes of it is observed, not believed: docs/states.md is made of
it (`kit.state_table`). Each look is a life of its own, in an engine of its own.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread
from typing import Any, ClassVar

import msgspec

from parkade import (
    Ambiguous,
    Attempt,
    Cancelled,
    Drop,
    EngineClosed,
    Fail,
    NotDead,
    RetryAfter,
    RetryPolicy,
    Snooze,
    Task,
    Ticket,
    TicketInfo,
    UnknownTicket,
    Unsafe,
)
from parkade.testing import Killed, TestEngine

__all__ = ["EVENTS", "ROWS", "Event", "Life", "look"]

AGAIN = RetryPolicy(3, backoff=["1m"])
AT_ONCE_LATE = RetryPolicy(3, backoff=["1m"], max_elapsed="30s")
Act = Callable[["Life"], str | None]


class Body(msgspec.Struct):
    """A payload that may come to fit its handler no more."""

    is_broken: ClassVar[bool] = False

    number: int = 0

    def __post_init__(self) -> None:
        if Body.is_broken:
            raise ValueError("it does not fit")


class Unwritable:
    """A result that cannot be stored."""


@dataclass
class Life:
    """One ticket, named "one", and the engine that it lives in."""

    engine: TestEngine
    options: dict[str, Any]
    task_name: str = "work"
    plans: list[Callable[[Attempt], Any]] = field(default_factory=list)
    started: int = 0
    is_inside: bool = False  # the handler of the ticket is what acts
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        for name, settings in (
            ("work", {}),
            ("careful", {"on_crash": "ambiguous"}),
            ("sleepy", {"max_snoozes": 1}),
            ("leased", {"lease": "1m"}),
        ):
            self.engine.task(name=name, retry=AGAIN, **settings)(self._handler())

    def _handler(self) -> Callable[..., Any]:
        def work(attempt: Attempt, body: Body) -> Any:
            self.started += 1
            return self.plans.pop(0)(attempt) if self.plans else "ok"

        return work

    @property
    def task(self) -> Task[..., Any]:
        return self.engine.lookup(self.task_name)

    # ------------------------------------------------------------------ what rows are made of

    def submit(self, **more: Any) -> None:
        self.ticket: Ticket[Any] = self.task.options(
            **({"unique": "one", "expires": "2h"} | self.options | more)
        ).submit(Body(1))

    def again(self, conflict: Any) -> Ticket[Any]:
        """The same name once more."""
        options = {"unique": "one", "delay": "1h", "on_conflict": conflict}
        return self.task.options(**options).submit(Body(2))

    def run(self, *plans: Callable[[Attempt], Any]) -> None:
        self.plans[:] = plans
        self.engine.run_until_idle()

    def pass_time(self, span: str) -> None:
        self.engine.clock.advance(span)

    def crash(self) -> None:
        self.engine = self.engine.crash()
        self.ticket = self.engine.ticket(self.ticket.id)

    def open_again(self) -> None:
        self.engine.start()
        self.ticket = self.engine.ticket(self.ticket.id)

    # ------------------------------------------------------------------ looking

    def info(self) -> TicketInfo | None:
        try:
            return self.ticket.info()
        except UnknownTicket:
            return None

    def state(self) -> str:
        """The state in the words of the table."""
        info = self.info()
        if info is None:
            return "gone"
        words = info.state if info.dead_reason is None else f"dead `{info.dead_reason}`"
        return f"{words}, cancel requested" if info.cancel_requested else words

    def is_unsure(self) -> bool:
        info = self.info()
        return info is not None and info.maybe_applied


# -------------------------------------------------------------------------------- rows


def raises(error: BaseException | type[BaseException]) -> Callable[[Attempt], Any]:
    """A handler that raises it."""

    def plan(attempt: Attempt) -> Any:
        raise error

    return plan


DOWN = raises(ConnectionError("down"))


def _scheduled(life: Life) -> None:
    life.submit(delay="1h")


def _ready(life: Life) -> None:
    life.submit()


def _held(life: Life) -> None:
    life.engine.pause(task=life.task_name)
    life.submit()


def _retrying(life: Life) -> None:
    life.submit()
    life.run(DOWN)


def _ended(*plans: Callable[[Attempt], Any], **options: Any) -> Callable[[Life], None]:
    def make(life: Life) -> None:
        life.submit(**options)
        for plan in plans:
            life.run(plan)
            life.pass_time("1m")

    return make


def _crashed(life: Life) -> None:
    life.task_name = "work"  # of another kind it would have died at the first
    life.submit(retry=100)
    for _ in range(4):
        _die(life)


def _die(life: Life) -> None:
    """The process dies in the handler, and the ticket is due again."""
    try:
        life.run(raises(Killed))
    except Killed:
        life.crash()
    life.pass_time("1h")


def _bad_payload(life: Life) -> None:
    life.submit()
    Body.is_broken = True
    life.run()
    Body.is_broken = False


def _cancelled(life: Life) -> None:
    life.submit()
    life.ticket.cancel()


def _expired(life: Life) -> None:
    life.submit(delay="1h", expires="2h")
    life.pass_time("4h")
    life.run()


def _gone(life: Life) -> None:
    _ended(raises(Fail("no")))(life)
    life.engine.dead.drop(life.ticket.id)


RUNNING, CANCELLING = "running", "running, cancel requested"
RUNNING_ROWS = (RUNNING, CANCELLING)
ROWS: dict[str, Callable[[Life], None]] = {
    "scheduled": _scheduled,
    "ready": _ready,
    "ready, held": _held,
    "scheduled, tried": _retrying,
    RUNNING: _ready,
    CANCELLING: _ready,
    "done": _ended(lambda _: "ok"),
    "dead `failed`": _ended(raises(Fail("no"))),
    "dead `exhausted`": _ended(DOWN, DOWN, DOWN, retry=AGAIN),
    "dead `late`": _ended(DOWN, retry=AT_ONCE_LATE),
    "dead `unsafe`": _ended(raises(Unsafe("no"))),
    "dead `ambiguous`": _ended(raises(Ambiguous("who knows"))),
    "dead `crashed`": _crashed,
    "dead `bad_payload`": _bad_payload,
    "cancelled": _cancelled,
    "expired": _expired,
    "gone": _gone,
}


# ------------------------------------------------------------------------------- events

End = Callable[[Life], Any]


@dataclass(frozen=True)
class Event:
    """Something that happens. `act` does it to a ticket that does not run, or from within the
    handler of one that does; `end` is the handler's own end. What has no `act` happens to a
    running ticket alone, and what has neither to a shard alone: `kind` is what a shard calls
    it."""

    name: str
    act: Act | None = None
    end: End | None = None
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    task: str = "work"
    times: int = 1


def _submit(life: Life) -> str:
    return "a new ticket" if life.again("return").created else "answered with it"


def _replace(life: Life) -> str:
    return "a new ticket" if life.again("replace").created else "answered with it"


def _cancel(life: Life) -> str:
    try:
        return f"`{life.ticket.cancel('enough')}`"
    except UnknownTicket:
        return "UnknownTicket"


def _reschedule(life: Life) -> str:
    try:
        return "yes" if life.ticket.reschedule(delay="3h") else "no"
    except UnknownTicket:
        return "UnknownTicket"


def _bulk(result: Any) -> str:
    return "yes" if result.changed else f"skipped, `{next(iter(result.skipped))}`"


def _revive(life: Life) -> str:
    return _bulk(life.engine.dead.revive(life.ticket.id))


def _revive_accepting(life: Life) -> str:
    return _bulk(life.engine.dead.revive(life.ticket.id, accept_ambiguous=True))


def _drop(life: Life) -> str:
    return _bulk(life.engine.dead.drop(life.ticket.id))


def _resolve(life: Life) -> str:
    try:
        life.engine.dead.resolve(life.ticket.id, "checked")
    except (NotDead, UnknownTicket) as error:
        return type(error).__name__
    return "yes"


def _later(span: str) -> Act:
    """Time passes; whatever may start, does."""

    def act(life: Life) -> str | None:
        started = life.started
        life.pass_time(span)
        if life.is_inside:
            return None
        life.run()
        return "starts" if life.started > started else None

    return act


def _clock_set(days: int, then: str = "0s") -> Act:
    """Somebody sets the clock; the time that passes then is real."""

    def act(life: Life) -> str | None:
        life.engine.clock.step_wall(timedelta(days=days))
        life.info()  # the engine sees it
        answer = _later(then)(life)
        _go_on(life)
        return answer

    return act


def _unreadable(life: Life) -> str | None:
    Body.is_broken = True
    return _later("1h")(life)


def _paused(life: Life) -> str | None:
    life.engine.pause(task="work")
    return _later("1h")(life)


def _kept_no_longer(life: Life) -> None:
    life.pass_time("2d")
    _go_on(life)


def _go_on(life: Life) -> None:
    """For some minutes: a checkpoint, and a round of retention for each shard and state."""
    for _ in range(8):
        life.info()
        life.pass_time("1m")


def _stop(life: Life) -> None:
    if not life.is_inside:
        life.engine.stop()
        life.open_again()
        return
    stopping = Thread(target=life.engine.stop, kwargs={"drain": 0, "cancel": 0})
    stopping.start()
    stopping.join()


def _raising(error: BaseException | type[BaseException]) -> End:
    def end(life: Life) -> Any:
        raise error

    return end


def _returning(value: Any) -> End:
    return lambda life: value


def _overrunning(life: Life) -> Any:
    life.pass_time("11s")
    return "ok"


def _lapsing(life: Life) -> Any:
    """No heartbeat for longer than the lease."""
    life.pass_time("2m")
    life.info()
    return "ok"


def _outcome(name: str, kind: str, end: End, **more: Any) -> Event:
    return Event(name, end=end, kind=kind, **more)


_UNTIL_4H = RetryPolicy(3, backoff=["1m"], max_elapsed="2h")
_TIMED = {"timeout": "10s"}
_OFTEN = {"retry": 100}
_DOWN = _raising(ConnectionError("down"))
_DIES = _raising(Killed)
EVENTS: dict[str, tuple[Event, ...]] = {
    "What callers ask": (
        Event("submit, same unique", _submit),
        Event("the same, `replace`", _replace),
        Event("cancel", _cancel),
        Event("reschedule to later", _reschedule),
    ),
    "What a person decides over the dead": (
        Event("revive", _revive),
        Event("revive, `accept_ambiguous`", _revive_accepting),
        Event("resolve", _resolve),
        Event("drop", _drop),
    ),
    "What time does": (
        Event("its time comes", _later("1h")),
        Event("the same, its task is paused", _paused),
        Event("the same, its payload does not decode", _unreadable),
        Event("`expires` passes", _later("4h")),
        Event(
            "`max_elapsed` passes", _later("4h"), options={"expires": None, "retry": _UNTIL_4H}
        ),
        Event("`keep_done` passes", _kept_no_longer, options={"expires": None}),
    ),
    "What its clock does": (
        Event("it is set back a day", _clock_set(-1)),
        Event("the same, and an hour passes", _clock_set(-1, "1h")),
        Event("it is set ahead a year", _clock_set(365)),
        Event("the same, and it stays so for a quarter of an hour", _clock_set(365, "15m")),
    ),
    "What happens to the engine": (
        Event("it stops", _stop),
        Event("the process dies", Life.crash, _DIES),
        Event("the same, `on_crash='ambiguous'`", Life.crash, _DIES, task="careful"),
        Event("the process dies of it, four times", Life.crash, _DIES, options=_OFTEN, times=4),
    ),
    "What a handler says": (
        _outcome("returns", "done", _returning("ok")),
        _outcome("raises", "transient", _DOWN),
        _outcome("raises, the last attempt", "transient", _DOWN, options={"retry": 1}),
        _outcome(
            "raises, no time for another", "transient", _DOWN, options={"retry": AT_ONCE_LATE}
        ),
        _outcome("`RetryAfter`", "transient", _raising(RetryAfter("5m"))),
        _outcome("`Snooze`", "snooze", _raising(Snooze("5m"))),
        _outcome(
            "the same, beyond `max_snoozes`", "snooze", _raising(Snooze("5m")), task="sleepy",
            times=2,
        ),
    ),
    "What a handler says for good": (
        _outcome("`Fail`", "failed", _raising(Fail("no"))),
        _outcome("`Unsafe`", "unsafe", _raising(Unsafe("no"))),
        _outcome("`Ambiguous`", "ambiguous", _raising(Ambiguous("who knows"))),
        _outcome("`Drop`", "drop", _raising(Drop("no use"))),
        _outcome("`Cancelled`", "cancelled", _raising(Cancelled("stop"))),
    ),
    "How else an attempt ends": (
        _outcome("overruns its timeout", "timeout", _overrunning, options=_TIMED),
        _outcome(
            "the same, `on_crash='ambiguous'`", "timeout", _overrunning, options=_TIMED,
            task="careful",
        ),
        _outcome("its result cannot be stored", "result_lost", _returning(Unwritable())),
        _outcome("raises `SystemExit`", "transient", _raising(SystemExit(3))),
        _outcome("loses its lease", "lease", _lapsing, task="leased"),
        Event("an attempt before this one returns", kind="late"),
    ),
}  # fmt: skip


# -------------------------------------------------------------------------------- looking


def look(row: str, event: Event) -> str:
    """What becomes of a ticket in that state when this happens, seen through the public API: what
    was answered, and the next state if it is another. "" for nothing."""
    Body.is_broken = False
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="parkade-states-", dir=base) as path:
        engine = TestEngine(path, keep_done="1d").start()
        life = Life(engine, dict(event.options), event.task)
        try:
            ROWS[row](life)
            if row in RUNNING_ROWS:
                return _look_inside(row, life, event)
            assert life.state() == row.partition(", ")[0], (row, life.state())
            assert event.act is not None
            return _seen(life, event.act)
        finally:
            life.engine.stop()


def _seen(life: Life, act: Act) -> str:
    before, was_unsure = life.state(), life.is_unsure()
    answer = act(life)
    after = life.state()
    words = [] if answer is None else [answer]
    if after != before:
        words.append(after)
    if life.is_unsure() and not was_unsure:
        words.append("maybe applied")
    return ", ".join(words)


def _look_inside(row: str, life: Life, event: Event) -> str:
    """The same from within the handler, or of how the handler ends."""
    cell: list[str] = []

    def plan(attempt: Attempt) -> Any:
        life.is_inside = True
        if row == CANCELLING and not life.is_cancelled:
            life.is_cancelled = True
            life.ticket.cancel("enough")
            assert life.state() == row, life.state()
        if event.end is not None:
            return event.end(life)
        assert event.act is not None
        if event.act is not _stop:
            cell.append(_seen(life, event.act))
        else:
            _stop(life)
        return "ok"

    for _ in range(event.times):
        life.plans[:] = [plan]
        try:
            life.engine.run_until_idle()
        except Killed:
            life.crash()
        except EngineClosed:
            life.open_again()
        life.is_inside = False
        if event.times > 1:
            life.pass_time("1h")
    if cell:
        return cell[0]
    return life.state() + (", maybe applied" if life.is_unsure() else "")
