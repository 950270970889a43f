"""What operators change while the engine runs, and what breakers do by themselves, made durable.

Each change is a record of the house, and whoever made it hears of it when that is durable. What a
breaker does is in force at once, written after the outcome that made it, and announced when it is
durable. Who looks before has it written then, and waits for no outcome: a crash may forget a
failure, and no trip that anybody was told of.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from parkade import events
from parkade.admission import Admission
from parkade.durations import datetime_of
from parkade.guards import Override, Pause, encode_override
from parkade.house import House
from parkade.io import ShardIO
from parkade.limits import CHECKPOINT_RETRY_MS, HOUSE_JOURNAL_BYTES
from parkade.shard.breaker import CLOSED, Circuit
from parkade.store.errors import NoRoom, StoreError
from parkade.store.record import BreakerSet, LimitSet, Paused, Record, Resumed
from parkade.telling import tell
from parkade.waiters import ThreadWaiter

if TYPE_CHECKING:
    from parkade.drive import Drive
    from parkade.host import Host

__all__ = ["Levers"]

T = TypeVar("T")
ANSWER_S_MAX = 60.0
_log = logging.getLogger("parkade.engine")


class _Change(NamedTuple):
    """Records to be written together, and who hears that they are durable (None) or are not."""

    records: Sequence[Record]
    then: Callable[[Exception | None], None]


class _Turned(NamedTuple):
    """How a breaker stood when its state was written; `until_ms` None: no time is set."""

    name: str
    is_closed: bool
    cause: str
    until_ms: int | None

    @classmethod
    def of(cls, name: str, circuit: Circuit) -> "_Turned":
        is_closed = circuit.state == CLOSED
        until_ms = None if is_closed or circuit.until_ms < 0 else circuit.until_ms
        return cls(name, is_closed, "" if is_closed else circuit.cause, until_ms)


class Levers:
    """`ask` and `change` are for any thread but a loop's; the rest is for the core thread."""

    def __init__(
        self, house: House, io: ShardIO, admission: Admission, host: "Host", drive: "Drive"
    ) -> None:
        self._house = house
        self._io = io
        self._admission = admission
        self._guards = admission.guards
        self._host = host
        self._drive = drive
        self._changes: deque[_Change] = deque()
        self._moved: dict[str, int] = {}  # breakers that stand as the house does not know yet
        self._moves = 0
        self.unwritten: set[str] = set()  # breakers whose last change could not be written
        self._retry_ms = 0
        self._under_way = 0

    # ------------------------------------------------------------------------------ any thread

    def ask(self, look: Callable[[], T], *, sees_breakers: bool = False) -> T:
        """What `look` sees on the core thread, told once all that it may have seen is durable.
        Raises what it raises, `StoreError`, `TimeoutError`."""
        seen: list[T] = []

        def begin(then: Callable[[Exception | None], None]) -> None:
            seen.append(look())
            self.when_durable(then, sees_breakers=sees_breakers)

        self._wait_for(begin)
        return seen[0]

    def change(self, records: Sequence[Record], apply: Callable[[], None]) -> None:
        """Writes records, then applies them on the core thread, then returns. Raises as `ask`;
        nothing is applied then."""

        def begin(then: Callable[[Exception | None], None]) -> None:
            def written(error: Exception | None) -> None:
                if error is None:
                    apply()
                then(error)

            self._write(records, written)

        self._wait_for(begin)

    def _wait_for(self, begin: Callable[[Callable[[Exception | None], None]], None]) -> None:
        waiter = ThreadWaiter()

        def then(error: Exception | None) -> None:
            if error is None:
                waiter.answer(0, None, self._host.wakeups)
            else:
                waiter.fail(0, error, self._host.wakeups)

        self._host.call(lambda: begin(then))
        if not self._drive.wait_for(waiter, ANSWER_S_MAX):
            raise TimeoutError("the house does not answer")
        if waiter.error is not None:
            raise waiter.error

    # -------------------------------------------------------------------------------- operators

    def pause(self, scope: str, until_ms: int | None, reason: str) -> None:
        pause = Pause(until_ms, reason)

        def apply() -> None:
            self._guards.set_pause(scope, pause, self._host.settled_ms)
            self._publish(events.PAUSED, (scope, reason, until_ms), scope)

        self.change([Paused(scope, until_ms, reason)], apply)

    def resume(self, scope: str) -> bool:
        """Whether there was a pause to take back."""
        taken: list[Pause] = []

        def apply() -> None:
            pause = self._guards.pauses.pop(scope, None)
            if pause is not None:
                taken.append(pause)
                self._publish(events.RESUMED, scope, scope)
            self._admission.wake("pause", scope)

        self.change([Resumed(scope)], apply)
        return bool(taken)

    def set_limit(self, scope: str, concurrency: int, starts: int, span_ms: int) -> None:
        """Zeros for what is not limited; all zero: what the code says holds again."""
        override: Override | None = None
        if concurrency or starts:
            code: bytes = self.ask(lambda: self._guards.code_of(scope))
            override = Override(concurrency, starts, span_ms, code)

        def apply() -> None:
            if override is None:
                self._guards.overrides.pop(scope, None)
            else:
                self._guards.overrides[scope] = override
            self._admission.refresh()
            kind, _, name = scope.partition(":")
            if kind == "key":
                self._admission.hand_on_key(name)

        encoded = None if override is None else encode_override(override)
        self.change([LimitSet(scope, encoded)], apply)

    def force_open(self, name: str, for_ms: int | None, reason: str) -> None:
        def turn(circuit: Circuit) -> None:
            circuit.force_open(self._host.now_ms, for_ms, reason)

        self._turn_breaker(name, turn)

    def close(self, name: str) -> bool:
        """Whether it was not closed already."""
        return self._turn_breaker(name, Circuit.close)

    def _turn_breaker(self, name: str, turn: Callable[[Circuit], None]) -> bool:
        """Whether it was not closed before."""
        was_open: list[bool] = []

        def begin(then: Callable[[Exception | None], None]) -> None:
            circuit = self._guards.circuits.setdefault(name, Circuit())
            was_closed = circuit.state == CLOSED
            was_open.append(not was_closed)
            turn(circuit)
            self._admission.wake("breaker", name)
            turned = _Turned.of(name, circuit)

            def written(error: Exception | None) -> None:
                if error is not None:
                    self._write_later([name])
                elif not (was_closed and turned.is_closed):
                    self._publish_breaker(turned)
                then(error)

            self.expect_breakers([name])
            self._write_breakers([name], written)

        self._wait_for(begin)
        return was_open[0]

    # --------------------------------------------------------------------------------- breakers

    def expect_breakers(self, names: Sequence[str]) -> None:
        """These have opened or closed, by outcomes that are not durable yet."""
        for name in names:
            self._moves += 1
            self._moved[name] = self._moves

    def note_breakers(self, names: Sequence[str]) -> None:
        """These have opened or closed, by outcomes that are durable."""
        names = list(dict.fromkeys(names))
        told = [_Turned.of(name, self._circuit(name)) for name in names]

        def written(error: Exception | None) -> None:
            if error is not None:
                self._write_later(names)
                self._host.report("writing a breaker's state", error)
                return
            for turned in told:
                self._publish_breaker(turned)
                _log_breaker(turned)

        self._write_breakers(names, written)

    def _circuit(self, name: str) -> Circuit:
        return self._guards.circuits.get(name) or Circuit()

    def _write_breakers(
        self, names: Iterable[str], then: Callable[[Exception | None], None]
    ) -> None:
        """As they stand now. What moves meanwhile stays to be written."""
        moves = {name: self._moved.get(name) for name in names}

        def written(error: Exception | None) -> None:
            if error is None:
                for name, move in moves.items():
                    if self._moved.get(name) == move:
                        self._moved.pop(name, None)
            then(error)

        self._write([BreakerSet(name, self._circuit(name).encode()) for name in moves], written)

    def _write_later(self, names: Iterable[str]) -> None:
        self.unwritten.update(names)
        self._retry_ms = self._host.mono_ms + CHECKPOINT_RETRY_MS

    # ----------------------------------------------------------------------------------- events

    def _publish_breaker(self, turned: "_Turned") -> None:
        if turned.is_closed:
            self._publish(events.BREAKER_CLOSED, turned.name)
        else:
            self._publish(events.BREAKER_OPEN, (turned.name, turned.cause, turned.until_ms))

    def _publish(self, kind: int, detail: object, scope: str = "") -> None:
        """It is durable. Of what concerns a task, the event has its name."""
        of, _, name = scope.partition(":")
        task = name if of == "task" else None
        self._host.feed.publish([(kind, self._host.now_ms, 0, 0, task, detail)])

    def step(self) -> None:
        """Writes again what could not be written."""
        if self._host.mono_ms >= self._retry_ms:
            names, self.unwritten = sorted(self.unwritten), set()
            self.note_breakers(names)

    # ---------------------------------------------------------------------------------- writing

    def when_durable(
        self, then: Callable[[Exception | None], None], *, sees_breakers: bool = False
    ) -> None:
        """Calls `then` once all that was changed so far is durable: at once, if it is. For whoever
        sees breakers, what they have done by outcomes that are not durable is written now."""
        if sees_breakers and self._moved:
            self._write_breakers(self._moved, then)
        elif self._under_way:
            self._write([], then)
        else:
            then(None)

    def _write(self, records: Sequence[Record], then: Callable[[Exception | None], None]) -> None:
        self._under_way += 1
        self._changes.append(_Change(records, then))
        self._io.call(self._take_changes, self._written)

    def _take_changes(self) -> tuple[list[_Change], Exception | None]:
        """On the house's thread: all that has come, in one frame."""
        changes: list[_Change] = []
        while self._changes:
            changes.append(self._changes.popleft())
        records = [record for change in changes for record in change.records]
        if not records:
            return changes, None
        try:
            self._append(records)
        except StoreError as error:
            return changes, error
        return changes, None

    def _append(self, records: list[Record]) -> None:
        """A second try after a recovery, since no record of these does more when it is there twice;
        but not where there is no room."""
        house = self._house
        try:
            house.append(records)
        except NoRoom:
            raise
        except StoreError:
            house.recover()
            house.append(records)
        if house.journal.bytes_since(house.store.lsn) > HOUSE_JOURNAL_BYTES:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """The records are durable without it: one that fails is made with the next of them."""
        try:
            self._house.checkpoint(now_ms=self._host.now_ms, settled_ms=self._host.settled_ms)
        except StoreError as error:
            self._host.report("a checkpoint of the house", error)
            if not isinstance(error, NoRoom):
                # Its store may take no more commits until it is opened again.
                with suppress(StoreError):
                    self._house.recover()

    def _written(
        self, done: tuple[list[_Change], Exception | None] | None, error: Exception | None
    ) -> None:
        changes, failure = ([], error) if done is None else done
        self._under_way -= len(changes)
        for change in changes:
            try:
                change.then(failure)
            except Exception as second:
                self._host.report("telling that a change is durable", second)

    def finish(self) -> None:
        """At the end, when the house's thread is no more: writes what has come since."""
        self._written(self._take_changes(), None)


def _log_breaker(turned: _Turned) -> None:
    if turned.until_ms is None:
        tell(_log, logging.INFO, "breaker %s closed", turned.name)
    else:
        until = datetime_of(turned.until_ms)
        text = "breaker %s opened (%s); next probe at %s"
        tell(_log, logging.WARNING, text, turned.name, turned.cause, until)
