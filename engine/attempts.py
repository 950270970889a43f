"""Attempts as the core thread sees them: from a free place to a running handler, and back.

A Started lists only tickets whose place is in hand and whose payload is there, and is durable
before the handlers run. An outcome frees its place at once and is settled by its shard; until that
is durable the attempt is remembered, so that a shard which is recovered in between does not take it
for lost (docs/architecture.md, Admission and attempts).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from parkade import limits
from parkade.admission import Admission, Pick
from parkade.asks import Ask
from parkade.guards import Permit
from parkade.policies import RetryPolicy
from parkade.shard.commands import (
    Answer,
    LostItem,
    Outcome,
    Refusal,
    Settle,
    SettleLost,
    Start,
    StartItem,
)
from parkade.shard.states import PENDING
from parkade.shard.ticket import Ticket
from parkade.submitting import draft_bytes

if TYPE_CHECKING:
    from parkade.job import Job
    from parkade.shard_host import ShardHost

__all__ = ["AttemptRunner", "Attempts", "TaskRules"]


class AttemptRunner(Protocol):
    """The executors."""

    def start(self, jobs: "Sequence[Job]") -> None: ...
    def cancel(
        self, serial: int, fence: int, reason: str, *, is_for_good: bool = False
    ) -> None: ...
    def look(self, mono_ms: int) -> None: ...
    def wait_ms(self, mono_ms: int) -> int | None: ...
    def is_loop_closed(self) -> bool: ...
    def loop_lost(self) -> None: ...


class TaskRules(Protocol):
    """What the code says of a task today."""

    def policy_of(self, ticket: Ticket) -> RetryPolicy: ...
    def on_crash_of(self, task: str) -> int: ...
    def job_of(self, ticket: Ticket, payload: bytes) -> "Job | None": ...
    def entropy(self) -> int: ...


class BreakerNotes(Protocol):
    """Who makes durable which breakers have opened or closed."""

    def expect_breakers(self, names: Sequence[str]) -> None:
        """By outcomes that are yet to be written."""

    def note_breakers(self, names: Sequence[str]) -> None:
        """By outcomes that are durable, or were lost with a shard that is served no more."""


class _Attempt(msgspec.Struct, gc=False, eq=False):
    """What an attempt has in hand; None when it was let go. `fence` is -1 until its Started is
    durable."""

    permit: Permit | None
    fence: int = -1


class _Zombie:
    """What an attempt still has in hand that was given up and whose handler runs on."""

    __slots__ = ("fence", "number", "permit")

    def __init__(self, number: int, fence: int, permit: Permit | None) -> None:
        self.number = number
        self.fence = fence
        self.permit = permit


class Attempts:
    """All attempts of the engine; used by the core thread alone."""

    def __init__(
        self,
        shards: "Sequence[ShardHost]",
        admission: Admission,
        rules: TaskRules,
        runner: AttemptRunner,
        breakers: "BreakerNotes | None" = None,
    ) -> None:
        self._shards = shards
        self.admission = admission
        self._rules = rules
        self._runner = runner
        self._breakers = breakers
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._shard_of: dict[int, int] = {}
        self._jobs: list[Job] = []
        self._changed: list[str] = []  # breakers, by the outcomes being settled
        self._clock_held: list[tuple[ShardHost, int]] = []
        self._zombies: dict[int, _Zombie] = {}  # by serial: its ticket has no other attempt
        self.outlived: set[int] = set()  # whose handlers an earlier engine left behind
        self._outlived_held: dict[int, ShardHost] = {}  # in hand until the older attempt ends
        self.is_admitting = False
        self.is_stopping = False
        self.runs_nothing = ""  # why, in an engine that is to start nothing
        self.finished = 0

    @property
    def running(self) -> int:
        """Places in use."""
        return sum(self.admission.used.values())

    # ------------------------------------------------------------------------------- starting

    def admit(self, now_ms: int, mono_ms: int | None = None, settled_ms: int | None = None) -> None:
        """Starts what may start. The other two clocks None: they are like the wall clock."""
        if self._runner.is_loop_closed():
            self._runner.loop_lost()
        self._give_back_clock_held()
        if not self.is_admitting or not self.admission.has_places:
            return
        open_shards = [shard for shard in self._shards if shard.takes_starts]
        picks: dict[int, list[Pick]] = defaultdict(list)
        twice: list[Pick] = []
        for pick in self.admission.take(open_shards, now_ms, mono_ms, settled_ms):
            held = self._attempts.get((pick.shard, pick.serial))
            if held is not None and held.permit is not None:
                # Rescheduled while it was in hand: its start is on its way already.
                twice.append(pick)
                continue
            self._attempts[pick.shard, pick.serial] = _Attempt(pick.permit)
            picks[pick.shard].append(pick)
        for pick in twice:
            self.admission.undo(pick.permit, now_ms)
        for number in self.admission.thinned:
            self._shards[number].is_stirred = True
        self.admission.thinned.clear()
        for number, picked in picks.items():
            self._prepare(self._shards[number], picked)

    def wait_ms(self, now_ms: int, mono_ms: int) -> int | None:
        """How long until time alone may let something start; None: it will not."""
        return self.admission.wait_ms(now_ms, mono_ms) if self.is_admitting else None

    def look_at_time(self, mono_ms: int) -> None:
        """Gives up attempts that have run out of time, before anything else is heard of them."""
        self._runner.look(mono_ms)

    def look_wait_ms(self, mono_ms: int) -> int | None:
        """How long until an attempt may run out of time; None: none will."""
        return self._runner.wait_ms(mono_ms)

    def cancel(self, serial: int, fence: int, reason: str) -> None:
        """That the ticket is to be cancelled is durable: its attempt hears of it."""
        self.send_jobs()  # it may be about to start
        self._runner.cancel(serial, fence, reason, is_for_good=True)

    def stop_admitting(self) -> None:
        """From here on nothing starts."""
        self.is_stopping = True
        self.is_admitting = False
        self.runs_nothing = "the engine stops"

    def _prepare(self, shard: "ShardHost", picks: list[Pick]) -> None:
        """Has the payloads read that are not in memory; what is there starts now."""
        ready: list[tuple[int, bytes]] = []
        missing: list[int] = []
        for pick in picks:
            payload = shard.core.payload(pick.serial)
            if payload is None:
                missing.append(pick.serial)
            else:
                ready.append((pick.serial, payload))
        if ready:
            self._start(shard, ready)
        if missing:
            self._fetch(shard, missing)

    def _fetch(self, shard: "ShardHost", serials: list[int]) -> None:
        reader = shard.reader

        def done(got: Any) -> None:
            stale = shard.is_stale(min(body.snapshot_commit for body in got))
            found: list[tuple[int, bytes]] = []
            again: list[int] = []
            for serial, body in zip(serials, got, strict=True):
                if body.is_damaged or (body.body is None and not stale):
                    self._release(shard.number, serial)
                    ticket = shard.core.hot.get(serial)
                    # One that has ended meanwhile has lost its payload by that.
                    if body.is_damaged or (ticket is not None and ticket.state == PENDING):
                        shard.quarantine(serial)
                elif stale:
                    again.append(serial)
                else:
                    found.append((serial, cast(bytes, body.body)))
            if found:
                self._start(shard, found)
            if again:
                self._fetch(shard, again)

        shard.read(lambda: [reader.body(serial) for serial in serials], done)

    def _start(self, shard: "ShardHost", tickets: list[tuple[int, bytes]]) -> None:
        payloads = dict(tickets)
        ask = Ask(
            Start(self._items(shard, payloads)),
            then=lambda answers, error: self._started(shard, payloads, answers, error),
        )
        shard.decide_now(ask)

    def _items(self, shard: "ShardHost", serials: Iterable[int]) -> list[StartItem]:
        """What the code says of each start; the same for all of a task that bring no options."""
        hot, rules = shard.core.hot, self._rules
        items: list[StartItem] = []
        plain: dict[str, tuple[int | None, int | None, int]] = {}
        for serial in serials:
            ticket = hot.get(serial)
            if ticket is None:
                items.append(StartItem(serial))
                continue
            said = plain.get(ticket.task) if ticket.options is None else None
            if said is None:
                policy, on_crash = rules.policy_of(ticket), rules.on_crash_of(ticket.task)
                said = (policy.max_attempts, policy.max_elapsed_ms, on_crash)
                if ticket.options is None:
                    plain[ticket.task] = said
            items.append(StartItem(serial, *said, self.is_outlived(serial)))
        return items

    @property
    def is_holding_outlived(self) -> bool:
        """Whether a ticket that could start waits for its older attempt to end."""
        return bool(self._outlived_held)

    def is_outlived(self, serial: int) -> bool:
        """Whether an older attempt of the ticket, given up or of an engine before, still runs."""
        return serial in self._zombies or serial in self.outlived

    def _started(
        self,
        shard: "ShardHost",
        payloads: dict[int, bytes],
        answers: list[Any] | None,
        error: BaseException | None,
    ) -> None:
        """The Started is durable: the handlers may run."""
        if answers is None:
            for serial in payloads:
                self._release(shard.number, serial)
            return
        for answer in answers:
            serial = answer.serial
            if isinstance(answer, Answer):
                self._run(shard, serial, answer.fence, payloads[serial])
            else:
                self._release(shard.number, serial)
                if answer.code == "clock":
                    # It stays in hand: back in its lane it would be picked before all others again.
                    self._clock_held.append((shard, serial))
                elif answer.code == "outlived" and self.is_outlived(serial):
                    self._outlived_held[serial] = shard
                else:
                    shard.placement.give_back(serial, shard.host.now_ms)

    def _give_back_clock_held(self) -> None:
        """The clocks agree again: what was held because they did not may be picked."""
        held, self._clock_held = self._clock_held, []
        for shard, serial in held:
            if shard.host.settled_ms < shard.host.now_ms:
                self._clock_held.append((shard, serial))
            elif (shard.number, serial) not in self._attempts:
                shard.placement.give_back(serial, shard.host.now_ms)

    def _run(self, shard: "ShardHost", serial: int, fence: int, payload: bytes) -> None:
        attempt = self._attempts[shard.number, serial]
        attempt.fence = fence
        ticket = shard.core.hot.get(serial)
        job = None if ticket is None else self._rules.job_of(replace(ticket), payload)
        if job is None:  # the handler went away between the pick and now
            self.settle([Outcome(serial, fence, "released", has_begun=False)], shard.number)
            return
        self._shard_of[serial] = shard.number
        self._jobs.append(job)

    @property
    def to_send(self) -> int:
        """How many attempts begin with the next `send_jobs`."""
        return len(self._jobs)

    def send_jobs(self) -> None:
        """Hands what may run to the executors: one call a pass."""
        if self._jobs:
            jobs, self._jobs = self._jobs, []
            self._runner.start(jobs)

    # ------------------------------------------------------------------------------- settling

    def settle_all(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes as the executors deliver them, of any shard."""
        by_shard: dict[int, list[Outcome]] = defaultdict(list)
        second: list[Outcome] = []
        for outcome in outcomes:
            number = self._shard_of.get(outcome.serial)
            if number is None or not self._is_latest(number, outcome):
                second.append(outcome)
                continue
            del self._shard_of[outcome.serial]
            by_shard[number].append(outcome)
        for number, listed in by_shard.items():
            self.finished += len(listed)
            self.settle(listed, number)
        # After the others: one of them may be what made its attempt a zombie.
        for outcome in second:
            zombie = self._zombies.get(outcome.serial)
            if zombie is not None and zombie.fence == outcome.fence:
                self._bury_zombie(zombie, outcome)

    def _is_latest(self, number: int, outcome: Outcome) -> bool:
        """Whether it is about the attempt that runs; an older one has nothing in hand here."""
        attempt = self._attempts.get((number, outcome.serial))
        return attempt is not None and attempt.fence == outcome.fence

    def _bury_zombie(self, zombie: _Zombie, outcome: Outcome) -> None:
        """Its handler has ended at last: what it had is free, and its ticket may start again. The
        shard refuses its outcome, and counts it."""
        del self._zombies[outcome.serial]
        shard = self._shards[zombie.number]
        if zombie.permit is not None:
            self.admission.release(zombie.permit, shard.host.now_ms)
        self._let_go(outcome.serial)
        self._put_settle(shard, [outcome], limits.OUTCOME_BYTES, ())

    def outlived_ended(self, serial: int) -> None:
        """A handler that an earlier engine of this process left behind has ended."""
        self.outlived.discard(serial)
        self._let_go(serial)

    def _let_go(self, serial: int) -> None:
        shard = self._outlived_held.pop(serial, None)
        if shard is not None:
            shard.is_stirred = True
            shard.placement.give_back(serial, shard.host.now_ms)

    def settle(self, outcomes: list[Outcome], number: int) -> None:
        for outcome in outcomes:
            self._end(number, outcome)
        changed, self._changed = self._changed, []
        if changed and self._breakers is not None:
            self._breakers.expect_breakers(changed)
        for listed, size in _split(outcomes):
            self._put_settle(self._shards[number], listed, size, changed)

    def _put_settle(
        self,
        shard: "ShardHost",
        outcomes: list[Outcome],
        size: int,
        changed: Sequence[str],
        *,
        is_repeated: bool = False,
    ) -> None:
        def settled(answers: list[Any] | None, error: BaseException | None) -> None:
            """Durable, or thrown away with its shard's memory: then it is settled again, which an
            outcome that was durable after all does not mind."""
            if answers is None and shard.status == "recovering":
                self._put_settle(shard, outcomes, size, changed, is_repeated=True)
                return
            for outcome in outcomes:
                self._forget(shard.number, outcome)
            if answers is not None and not is_repeated:
                shard.refused_outcomes += [type(each) for each in answers].count(Refusal)
            if changed and self._breakers is not None:
                self._breakers.note_breakers(changed)

        shard.put(Ask(Settle(outcomes), then=settled, size=size))

    def _forget(self, number: int, outcome: Outcome) -> None:
        """The outcome is durable. By now the ticket may be on its way to its next attempt."""
        attempt = self._attempts.get((number, outcome.serial))
        if attempt is not None and attempt.fence == outcome.fence:
            del self._attempts[number, outcome.serial]

    def _end(self, number: int, outcome: Outcome) -> None:
        """Its breaker hears how the attempt ended. What it had is free, unless its handler goes on
        all the same: then that is when it has physically ended."""
        attempt = self._attempts.get((number, outcome.serial))
        permit = None
        if attempt is not None and attempt.permit is not None:
            permit, attempt.permit = attempt.permit, None
            now_ms = self._shards[number].host.now_ms
            name = permit.plan.breaker
            if self.admission.guards.report(permit, outcome, now_ms) and name is not None:
                self._changed.append(name)
            for name in self.admission.guards.take_abandoned():
                self._changed.append(name)
                self.admission.wake("breaker", name)
            if not outcome.lives_on:
                self.admission.release(permit, now_ms)
        if outcome.lives_on:
            self._zombies[outcome.serial] = _Zombie(number, outcome.fence, permit)

    def _release(self, number: int, serial: int) -> None:
        """What was in hand for an attempt that never began is free again."""
        attempt = self._attempts.pop((number, serial), None)
        if attempt is not None and attempt.permit is not None:
            self.admission.undo(attempt.permit, self._shards[number].host.now_ms)

    # --------------------------------------------------------------------------- lost attempts

    def settle_lost(self, shards: "Sequence[ShardHost]", then: Callable[[], None]) -> None:
        """Settles every attempt that the shards hold as running and this process does not run.

        One of several suspects tells nothing: a death counts for a ticket only if it was the only
        suspect running, over all shards (docs/semantics.md, Suspects).
        """
        lost = [(shard, ticket) for shard in shards for ticket in self._lost(shard)]
        suspects = sum(ticket.is_suspect for _, ticket in lost)
        parts: list[tuple[ShardHost, list[LostItem]]] = []
        for shard in shards:
            items = [self._lost_item(ticket, suspects) for owner, ticket in lost if owner is shard]
            chunks = range(0, len(items), limits.LOST_CHUNK)
            parts += [(shard, items[n : n + limits.LOST_CHUNK]) for n in chunks]
        waiting = set(range(len(parts)))
        if not waiting:
            then()
        for part, (shard, items) in enumerate(parts):
            self._put_lost(shard, items, part, waiting, then)

    def _put_lost(
        self,
        shard: "ShardHost",
        items: list[LostItem],
        part: int,
        waiting: set[int],
        then: Callable[[], None],
    ) -> None:
        def settled(answers: Any, error: BaseException | None) -> None:
            if answers is None and shard.status == "recovering":
                self._put_lost(shard, items, part, waiting, then)
                return
            waiting.discard(part)
            if not waiting:
                then()

        shard.put(Ask(SettleLost(items), then=settled, size=limits.OUTCOME_BYTES * len(items)))

    def _lost(self, shard: "ShardHost") -> list[Ticket]:
        lost: list[Ticket] = []
        for serial in shard.core.running:
            attempt = self._attempts.get((shard.number, serial))
            ticket = shard.core.hot[serial]
            if attempt is None or attempt.fence != ticket.fence:
                lost.append(ticket)
        return lost

    def _lost_item(self, ticket: Ticket, suspects: int) -> LostItem:
        policy = self._rules.policy_of(ticket)
        wait_ms = policy.wait_ms(max(0, ticket.attempts - 1), self._rules.entropy())
        is_alone = ticket.is_suspect and suspects == 1
        return LostItem(ticket.serial, ticket.fence, max(1, wait_ms), policy.max_attempts, is_alone)

    def shard_recovered(self, shard: "ShardHost") -> None:
        """In this process: what runs goes on, and hears again that it is to stop."""
        for serial in shard.core.running:
            ticket = shard.core.hot[serial]
            if ticket.cancel_reason is not None:
                self.cancel(serial, ticket.fence, ticket.cancel_reason)
        self._give_back_unbegun(shard)

    def _give_back_unbegun(self, shard: "ShardHost") -> None:
        """A Started that was durable after all, and whose handler never ran because nobody knew.
        It cost nothing, and no process died of it."""
        outcomes = [
            Outcome(ticket.serial, ticket.fence, "released", has_begun=False)
            for ticket in self._lost(shard)
        ]
        if outcomes:
            self.settle(outcomes, shard.number)

    def shard_failed(self, shard: "ShardHost") -> None:
        """Its memory is gone: places of attempts that had not begun are free again."""
        self.admission.shard_is_gone(shard.number)
        self._clock_held = [held for held in self._clock_held if held[0] is not shard]
        for serial in [serial for serial, of in self._outlived_held.items() if of is shard]:
            del self._outlived_held[serial]
        for (number, serial), attempt in list(self._attempts.items()):
            if number == shard.number and attempt.fence == -1:
                self._release(number, serial)

    def give_back(self, unfinished: Iterable[tuple[int, int, bool]]) -> int:
        """At the end of a stop: what still runs is given back without spending an attempt."""
        by_shard: dict[int, list[Outcome]] = defaultdict(list)
        count = 0
        for serial, fence, has_begun in unfinished:
            number = self._shard_of.pop(serial, None)
            if number is not None:
                count += 1
                by_shard[number].append(Outcome(serial, fence, "released", has_begun=has_begun))
        for serial, number in self._shard_of.items():
            # It ended while the executors were closed: its outcome went nowhere.
            count += 1
            fence = self._attempts[number, serial].fence
            by_shard[number].append(Outcome(serial, fence, "released"))
        self._shard_of.clear()
        for number, listed in by_shard.items():
            self.settle(listed, number)
        return count


def _split(outcomes: list[Outcome]) -> Iterator[tuple[list[Outcome], int]]:
    """Commands of bounded size, and about how much each may write."""
    listed: list[Outcome] = []
    total = 0
    for outcome in outcomes:
        size = limits.OUTCOME_BYTES + len(outcome.result)
        if outcome.error is not None:
            size += len(outcome.error.message) + len(outcome.error.traceback)
        size += sum(map(draft_bytes, outcome.born or ()))
        if listed and total + size > limits.COMMAND_BYTES_MAX:
            yield listed, total
            listed, total = [], 0
        listed.append(outcome)
        total += size
    if listed:
        yield listed, total
