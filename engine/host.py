"""The core thread: the turns of all shards, one pass after another.

A pass reads the clocks once, takes what has come in, gives every shard its turn, starts what may
start, and wakes whoever got an answer. After any wait it looks first at the clocks, then at leases
and timers, then at the inbox. `step` is one pass; threads only make it go by itself.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from parkade import limits
from parkade.asks import Ask
from parkade.attempts import Attempts
from parkade.backpressure import Valve
from parkade.bell import Bell
from parkade.caller_frames import CallerFrames
from parkade.clock import Clock, MonoMs, SettledClock, WallMs
from parkade.feed import Feed
from parkade.inbox import Inbox
from parkade.keeping import Keeping
from parkade.levers import Levers
from parkade.lone_frames import LoneFrames
from parkade.opening import OpenShard
from parkade.outcome_wait import OUTCOME_WAIT_S, OutcomeWait
from parkade.shard.commands import Outcome
from parkade.shard.memory import changed_bytes
from parkade.shard.ticket import Ticket
from parkade.shard_host import ShardHost
from parkade.volley import LINGER_S, Volley
from parkade.waiters import Wakeups
from parkade.why import gather

__all__ = ["Host", "Recovery"]

GIVE_WAY_S = 0.001
"""How long the core thread does nothing, at most, after a lone frame, or an answer that needed
none. Whom it has started or answered goes on meanwhile, and does not wait for the interpreter while
upkeep has it."""

STEP_MS = 1_000  # that the wall clock was set by, at least


class Recovery(Protocol):
    """How the engine around the host turns store errors into its own, and reopens a shard."""

    def failure(self, shard: int, error: BaseException) -> Exception: ...
    def reopen(self, shard: ShardHost) -> OpenShard: ...
    def report(self, what: str, error: BaseException | None) -> None: ...


class Host:
    """Everything that changes, changes on its thread (`step`), save the inbox and `post`."""

    def __init__(
        self,
        clock: Clock,
        settled: SettledClock,
        recovery: Recovery,
        keeping: Keeping | None = None,
    ) -> None:
        self.clock = clock
        self._settled_clock = settled
        self._recovery = recovery
        self.keeping = Keeping() if keeping is None else keeping
        self.wakeups = Wakeups()
        self.feed = Feed()
        self.inbox = Inbox(limits.DOOR_BYTES_MAX, self.wake, self._wake_soon)
        self.shards: list[ShardHost] = []
        self.attempts: Attempts
        self.levers: Levers | None = None
        self._due_decided = self._due_before = 0  # due tickets let in: in this pass, in the last
        self._event = Bell()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._outcomes: deque[list[Outcome]] = deque()
        self._conditions: list[tuple[Callable[[], bool], threading.Event]] = []
        self._thread: threading.Thread | None = None
        self._is_ended = False
        self._is_over = True  # there is no core thread
        self._over = threading.RLock()
        self.fatal: BaseException | None = None
        self.steps = 0
        self._leaving = 0
        self._is_handing_over = False
        self._changed_bytes: int | None = None
        self.lone_frames = LoneFrames()
        self.caller_frames = CallerFrames(
            clock,
            self.wake,
            is_called=self._is_called_beside,
            is_heard=self.feed.is_heard,
        )
        self._volley = Volley()
        self._outcome_wait = OutcomeWait()
        self._pauses = False  # for a moment, after the pass
        self._gives_way = False  # to all but those who are not patient
        self._is_wanted = False  # a pass, for another reason than outcomes and frames
        self.is_lone = False  # one shard has something to do: its frame may be written in this pass
        self._lag_ms = self._offset_ms = 0  # of the clocks by which the shards have reckoned
        self._read_clocks()

    # -------------------------------------------------------------------------- any thread

    def wake(self) -> None:
        """Has the next pass begin now."""
        self._is_wanted = True  # in this order: whoever hushes the bell looks for it afterwards
        if not self._event.is_set():
            self._event.set()

    def _wake_soon(self) -> None:
        """Has a pass begin in `GIVE_WAY_S` at the latest."""
        if not self._gives_way:
            self.wake()

    def post_for(self, number: int) -> Callable[..., None]:
        """`post` for what concerns one shard: it gets its turn afterwards, the others rest."""

        def post(function: Callable[..., None], *arguments: Any) -> None:
            self._posted.append((self._call_for, (number, function, arguments)))
            if not (
                self._volley.holds(len(self._posted)) and function == self.shards[number].durable
            ):
                self.wake()

        return post

    def _call_for(
        self, number: int, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        shard = self.shards[number]
        shard.is_stirred = shard.is_stirred or function != shard.durable
        try:
            function(*arguments)
        except Exception as error:
            shard.call_failed(error)

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls `function` on the core thread, in the next pass."""
        self._posted.append((function, arguments))
        self.wake()

    def deliver(self, outcomes: list[Outcome]) -> None:
        """Outcomes, as executors have them."""
        self._outcomes.append(outcomes)
        if not (self._outcome_wait.holds(len(outcomes)) or self._event.is_set()):
            self._event.set()

    def call(self, function: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """The value of `function`, called on the core thread; raises what it raises.

        Where that thread is no more, or not yet, it is called here. Raises `SubmitReentered` in a
        finalizer or a signal handler that would wait for itself.
        """
        self.caller_frames.check("engine")
        done = threading.Event()
        got: list[Any] = []

        def run() -> None:
            try:
                got.append((function(), None))
            except BaseException as error:
                got.append((None, error))
            done.set()

        self.post(run)
        if self._is_over:
            self.run_posted()
        if not done.wait(timeout_s):
            raise TimeoutError("the core thread does not answer")
        value, error = got[0]
        if error is not None:
            raise error
        return value

    def when(self, condition: Callable[[], bool]) -> threading.Event:
        """An event that is set at the end of the first pass in which `condition` holds; or when
        there are no more passes."""
        event = threading.Event()
        self.post(lambda: self._conditions.append((condition, event)))
        if self._is_over:
            self.run_posted()
        return event

    # ------------------------------------------------------------------------- its own thread

    def start(self) -> None:
        self._is_over = False
        self._outcome_wait.is_allowed = True
        self._thread = threading.Thread(target=self._run, name="parkade-core", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread after the pass under way."""
        self._is_ended = True
        self.wake()
        thread = self._thread
        if thread is not None:
            thread.join()

    def run_posted(self) -> None:
        """What was posted, on this thread: when the core thread is no more and nobody else is to
        take it."""
        with self._over:
            self.caller_frames.take_in()  # what was posted may decide: its records come after those
            while self._posted:
                self._take_posted()
            conditions, self._conditions = self._conditions, []
            for _, event in conditions:
                event.set()  # no pass will look at it: whoever waits has to
            self.wakeups.send()

    def _run(self) -> None:
        self.caller_frames.own_threads.add(threading.get_ident())
        try:
            while not self._is_ended:
                self._event.clear()
                self._is_wanted = False
                self._volley.gather()
                wait_ms = self.step()
                self._hush()
                if self._outcome_wait.is_on:
                    self._await_outcomes()
                elif self._pauses:
                    self._event.wait(GIVE_WAY_S)
                elif wait_ms and not (self._await_outcomes() or self._await_volley()):
                    self.clock.wait(self._event, wait_ms)
        except BaseException as error:
            self.fatal = error
            self._give_up(error)
        finally:
            self.caller_frames.end()
            # In this order: whoever posts from now on looks at the flag after posting.
            self._is_over = True
            self.run_posted()

    def _hush(self) -> None:
        """What the bell was rung for the pass may have taken: that makes no pass of its own."""
        if self._event.is_set():
            self._event.clear()
            has_outcomes = self._outcomes and not self._outcome_wait.is_short
            if has_outcomes or self._is_wanted:
                self._event.set()
        if self._is_ended:
            self._event.set()  # a frame that was written in the pass may have hushed that

    def _await_outcomes(self) -> bool:
        """Whether there is something to do, once those attempts that have begun in the pass are
        through, or a moment is over; at once where no outcomes are waited for."""
        if not self._outcome_wait.is_expecting:
            return False
        if not self._event.wait(OUTCOME_WAIT_S):
            self._outcome_wait.give_up()
        return bool(self._is_wanted or self._outcomes)

    def _await_volley(self) -> bool:
        """Whether there is something to do, once all frames that are on their way are durable, or a
        moment is over."""
        volley, posted, frames = self._volley, self._posted, 0
        for shard in self.shards:
            frames += shard.is_open and shard.frame_in_flight
        if volley.expect(frames):
            if len(posted) >= volley.count or self._event.wait(LINGER_S):
                return True
            volley.end()
        return bool(posted)

    def _give_up(self, error: BaseException) -> None:
        """Whoever waits, and whoever still comes, hears of it."""
        self.report("the core thread ended", error)
        for shard in self.shards:
            try:
                shard.refuse(error)
            except Exception as second:
                self.report(f"closing shard {shard.number:02d}", second)
        self.inbox.close(self.failure(0, error))
        self.wakeups.send()
        self.feed.close()

    def step(self) -> int:
        """One pass; how many ms to wait for the next if nothing comes in (0: go on)."""
        self.steps += 1
        self.caller_frames.shut_door()
        try:
            return self._pass()
        finally:
            self.caller_frames.open_door()

    def _pass(self) -> int:
        self._changed_bytes = None
        # Before anything is taken: who comes behind that wakes us.
        self._pauses = self._gives_way = False
        self._read_clocks()
        self.caller_frames.take_in()
        self.attempts.look_at_time(self.mono_ms)
        if self._posted:
            self._take_posted()
        self.take_outcomes()
        if self.inbox.asks:
            self._take_asks()
        self._give_turns()
        self._admit()
        if self.levers is not None and self.levers.unwritten:
            self.levers.step()
        if self._leaving:
            leaving, self._leaving = self._leaving, 0
            self.inbox.leave(leaving)
        if self.inbox.valve is not None:
            self._tell_valve(self.inbox.valve)
        written = self.lone_frames.written
        is_waiting = bool(self.attempts.jobs) and self._waits_for_outcomes()
        is_more = not is_waiting and self._hand_frames()
        if self._let_go() and not (self.inbox.asks or self._outcomes):
            self._gives_way = self.lone_frames.written > written
            self._pauses = self._gives_way or self._has_put_off()
        if self._conditions:
            self._check_conditions()
        return 0 if is_more or self._pauses else self._wait_ms()

    def _let_go(self) -> bool:
        """What may leave leaves, the attempts first: who has an answer may want more, and they
        would wait for that. Whether anything left."""
        has_begun = bool(self.attempts.jobs) and self.attempts.send_jobs()
        return self.wakeups.send() or has_begun

    def _has_put_off(self) -> bool:
        """Whether upkeep is to follow, and no frame is on its way."""
        has_any = False
        for shard in self.shards:
            if shard.is_open:
                if shard.frame_in_flight:
                    return False
                has_any = has_any or shard.upkeep.put_off > 0
        return has_any

    def _waits_for_outcomes(self) -> bool:
        """Whether frames wait for the outcomes of the attempts that begin in this pass."""
        records = [len(shard.records) for shard in self.shards if shard.is_open]
        return self._outcome_wait.begins(len(self.attempts.jobs), max(records, default=0))

    def _hand_frames(self) -> bool:
        """To the shards' own threads; a lone one is written here, and heard of at once. True: there
        is more to do, which the next pass may begin with."""
        for shard in self.shards:
            if shard.is_open and (shard.records or shard.frame_in_flight):
                break
        else:
            return False
        began_ms = self.clock.monotonic_ms()
        is_called = bool(self.inbox.asks or self._outcomes)
        lone = None if is_called else self.lone_frames.pick(self.shards, began_ms)
        if lone is None:
            for shard in self.shards:
                if shard.is_open and shard.records:
                    shard.hand_frame()
            return False
        self._let_go()  # nothing that is durable waits for the disk once more
        lone.hand_frame(is_here=True)
        ended_ms = self.clock.monotonic_ms()
        is_called = bool(self.inbox.asks or self._outcomes)
        self.lone_frames.note(began_ms=began_ms, ended_ms=ended_ms, has_company=is_called)
        if self._posted:
            self._event.clear()
            self._take_posted()
        is_more = False
        for shard in self.shards:
            is_more = is_more or shard.is_stirred  # by what had come for any of them
        return is_more

    def _is_called_beside(self, sent_on: int) -> bool:
        """Whether somebody wants something that the pass under way does not know of, beside so many
        asks of callers who could not write by themselves."""
        return len(self.inbox.asks) > sent_on or bool(self._outcomes)

    def _give_turns(self) -> None:
        """To the shards into which something has come, or for which something is due: one at rest
        costs a pass two comparisons. An error costs its shard the memory that may be wrong, and the
        others nothing."""
        now_ms, mono_ms = self.now_ms, self.mono_ms
        stirred = 0
        for shard in self.shards:
            stirred += shard.is_stirred
        self.is_lone = stirred < 2 and self.lone_frames.is_quiet(mono_ms)
        for shard in self.shards:
            dues = shard.dues
            if shard.is_stirred or now_ms >= dues.wall_ms or mono_ms >= dues.mono_ms:
                try:
                    shard.turn()
                except Exception as error:
                    shard.poison(error)

    def _admit(self) -> None:
        """Which shard an error here comes from is not known: all are recovered from their disks."""
        try:
            if self._is_handing_over:
                self._is_handing_over = any(s.handing.is_behind for s in self.open_shards())
                if self._is_handing_over:
                    return
            self.attempts.admit(self.now_ms, self.mono_ms, self.settled_ms)
        except Exception as error:
            for shard in self.open_shards():
                shard.poison(error)

    def _read_clocks(self) -> None:
        self.now_ms = self.clock.now_ms()
        self.mono_ms = self.clock.monotonic_ms()
        settled_ms = self._settled_clock.read(WallMs(self.now_ms), MonoMs(self.mono_ms))
        # A wall clock set back gives deadlines that the settled clock has passed already.
        self.settled_ms: int = settled_ms if settled_ms < self.now_ms else self.now_ms
        offset_ms, lag_ms = self.now_ms - self.mono_ms, self.now_ms - self.settled_ms
        if lag_ms != self._lag_ms or not -STEP_MS <= offset_ms - self._offset_ms <= STEP_MS:
            self._lag_ms, self._offset_ms = lag_ms, offset_ms
            self._stir()  # what is due when was reckoned by other clocks

    def _take_posted(self) -> None:
        posted = self._posted
        for _ in range(len(posted)):
            function, arguments = posted.popleft()
            if function != self._call_for:
                self._stir()  # whatever it does, whomever it concerns
            try:
                function(*arguments)
            except Exception as error:
                self.report("a call of the core thread", error)

    def _stir(self) -> None:
        for shard in self.shards:
            shard.is_stirred = True

    def take_outcomes(self) -> None:
        """Settles what the executors have delivered."""
        outcomes: list[Outcome] = []
        if self._outcomes:
            for _ in range(len(self._outcomes)):
                outcomes += self._outcomes.popleft()
        self._outcome_wait.end(len(outcomes))
        if outcomes:
            self.attempts.settle_all(outcomes)

    def _take_asks(self) -> None:
        for number, ask in self.inbox.take():
            self.shards[number].put(ask)

    @property
    def counts_ready(self) -> bool:
        """Whether what a pass decides as due is to be in its lane after the next: it is counted."""
        return self.inbox.valve is not None

    def decided(self, ask: Ask) -> None:
        """A submit has left the undecided: the door has its bytes back."""
        self._leaving += ask.door_bytes
        self._due_decided += ask.due_count
        ask.door_bytes = ask.due_count = 0

    def _tell_valve(self, valve: Valve) -> None:
        """What a pass has decided is in its lane after the next."""
        shards = self.open_shards()
        ready = sum(shard.placement.ready_count for shard in shards)
        oldest = (shard.placement.oldest_ready_ms() for shard in shards)
        oldest_ms = min((ms for ms in oldest if ms is not None), default=self.now_ms)
        valve.tell(ready, max(0, self.now_ms - oldest_ms), self._due_before)
        self._due_before, self._due_decided = self._due_decided, 0

    def _check_conditions(self) -> None:
        left: list[tuple[Callable[[], bool], threading.Event]] = []
        for condition, event in self._conditions:
            if self._holds(condition):
                event.set()
            else:
                left.append((condition, event))
        self._conditions = left

    def _holds(self, condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except Exception as error:
            self.report("a condition of somebody who waits", error)
            return True

    def _wait_ms(self) -> int:
        is_called = self.inbox.asks or self._outcomes
        if is_called or (self._posted and not self._volley.is_gathering):
            return 0
        wait_ms = limits.WAIT_MS_MAX
        start_ms = self.attempts.wait_ms(self.now_ms, self.mono_ms)
        # Until hand-overs have arrived nothing starts, and their arrival begins a pass by itself.
        if start_ms is not None and not self._is_handing_over:
            wait_ms = min(wait_ms, start_ms)
        look_ms = self.attempts.look_wait_ms(self.mono_ms)
        if look_ms is not None:
            wait_ms = min(wait_ms, look_ms)
        now_ms, mono_ms = self.now_ms, self.mono_ms
        for shard in self.shards:
            if not shard.is_open:
                continue
            dues = shard.dues
            if shard.is_stirred or shard.upkeep.put_off:
                wait_ms = min(wait_ms, shard.wait_ms())
            elif dues.wall_ms - now_ms < wait_ms or dues.mono_ms - mono_ms < wait_ms:
                wait_ms = min(dues.wall_ms - now_ms, dues.mono_ms - mono_ms)
        return max(0, wait_ms)

    # ------------------------------------------------------------------------ what shards need

    def failure(self, shard: int, error: BaseException) -> Exception:
        return self._recovery.failure(shard, error)

    def reopen(self, shard: ShardHost) -> OpenShard:
        return self._recovery.reopen(shard)

    def report(self, what: str, error: BaseException | None) -> None:
        self._recovery.report(what, error)

    def shard_failed(self, shard: ShardHost) -> None:
        self.attempts.shard_failed(shard)
        self._stir_awaiting()

    def shard_recovered(self, shard: ShardHost) -> None:
        self.feed.look_again()
        self.attempts.shard_recovered(shard)
        self.hand_over(shard)

    def hand_over(self, shard: ShardHost | None = None) -> None:
        """Every shard begins again with what it has for this one; None: with all that it has. Until
        what was there before has arrived nothing is started: order within a key rests on it."""
        self._is_handing_over = True
        self._stir_awaiting()
        for other in self.open_shards():
            if shard is None or other is shard:
                other.handing.step()
            else:
                other.handing.restart(shard.number)

    def _stir_awaiting(self) -> None:
        """What a shard waits for may not come any more, or be here."""
        for shard in self.open_shards():
            shard.is_stirred = shard.is_stirred or shard.arrivals.is_awaited

    def has_changed_room(self) -> bool:
        """False at the bound of what is dirty or in flight in all shards, and does not only move to
        rows: submits then wait for a checkpoint."""
        if self.changed_bytes < limits.DIRTY_BYTES_MAX:
            return True
        moved_bytes = sum([s.core.memory.moved_bytes for s in self.shards if s.is_open])
        return self.changed_bytes - moved_bytes < limits.DIRTY_BYTES_MAX

    @property
    def changed_bytes(self) -> int:
        """What is dirty or in flight in all shards. Reckoned once a pass."""
        if self._changed_bytes is None:
            self._changed_bytes = changed_bytes([s.core.memory for s in self.shards if s.is_open])
        return self._changed_bytes

    def shard(self, number: int) -> ShardHost | None:
        return self.shards[number] if 0 <= number < len(self.shards) else None

    def explain(self, shard: ShardHost, ask: Ask, ticket: Ticket) -> None:
        """Answers why a ticket is not running, once what was seen for it is durable: the ticket in
        its shard, what holds it in the house."""
        core, levers = shard.core, self.levers
        assert levers is not None
        facts = gather(shard, ticket, self.attempts, self.mono_ms)

        def told(error: Exception | None) -> None:
            if error is not None:
                ask.fail(self.failure(shard.number, error), self.wakeups)
            elif shard.is_open and shard.core is core:
                shard.hold(ask, facts)
            else:
                shard.put(ask)

        sees_breakers = any(held.hold.kind == "breaker" for held in facts.held)
        levers.when_durable(told, sees_breakers=sees_breakers)

    def open_shards(self) -> Sequence[ShardHost]:
        return [shard for shard in self.shards if shard.is_open]
