"""Attempts as the core thread sees them: from a free place to a running handler, and back.

A Started lists only tickets whose place is in hand and whose payload is there, and is durable
before the handlers run. An outcome frees its place at once and is settled by its shard; until that
is durable the attempt is remembered, so that a shard which is recovered in between does not take it
for lost (docs/architecture.md, Admission and attempts).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from parkade import limits
from parkade.admission import Admission
from parkade.asks import Ask
from parkade.attempt_ports import AttemptRunner, BreakerNotes, TaskRules
from parkade.guards import Permit
from parkade.portions import portions
from parkade.shard.commands import (
    AllSettled,
    AllStarted,
    Answer,
    LostItem,
    Outcome,
    Refusal,
    Settle,
    SettleLost,
    Start,
    StartAlike,
    StartItem,
)
from parkade.shard.states import PENDING
from parkade.shard.ticket import Ticket

if TYPE_CHECKING:
    from parkade.job import Job
    from parkade.shard_host import ShardHost

__all__ = ["Attempts"]


class _Attempt(msgspec.Struct, gc=False, eq=False):
    """What an attempt has in hand; None when it was let go. `fence` is -1 until its Started is
    durable. `is_out`: it was given to the executors, and its outcome has not come yet."""

    number: int  # of its shard
    permit: Permit | None
    fence: int = -1
    is_out: bool = False


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
        breakers: BreakerNotes | None = None,
    ) -> None:
        self._shards = shards
        self.admission = admission
        self._rules = rules
        self._runner = runner
        # Gives up attempts that have run out of time, before anything else is heard of them.
        self.look_at_time = runner.look
        # How long until an attempt may run out of time; None: none will.
        self.look_wait_ms = runner.wait_ms
        self._breakers = breakers
        self._attempts: dict[int, _Attempt] = {}  # by serial, which no two shards share
        self._unbegun: set[int] = set()  # picked, and no Started of theirs is durable yet
        self.jobs: list[Job] = []  # they begin with the next `send_jobs`
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

    @property
    def under_way(self) -> int:
        """How many have what they need, and no durable Started yet."""
        return len(self._unbegun)

    def _starts_left(self) -> int:
        """How many more may be under way. None before half of them are durable: each shard's frame
        would make room for a few, and every ticket would pay for a pass. One task alone has nobody
        behind it who would wait."""
        most, under_way = limits.STARTS_UNDER_WAY_MAX, len(self._unbegun)
        if self.admission.is_one_task:
            return limits.START_BATCH_MAX
        return most - under_way if 2 * under_way <= most else 0

    # ------------------------------------------------------------------------------- starting

    def admit(self, now_ms: int, mono_ms: int | None = None, settled_ms: int | None = None) -> None:
        """Starts what may start. The other two clocks None: they are like the wall clock."""
        if self._runner.is_loop_closed():
            self._runner.loop_lost()
        if self._clock_held:
            self._give_back_clock_held()
        if not self.is_admitting:
            return
        open_shards = [s for s in self._shards if s.is_open and s.room.takes_starts]
        if not self.admission.may_take(open_shards, now_ms, mono_ms, settled_ms):
            return
        picks: dict[int, list[int]] = defaultdict(list)
        twice: list[Permit] = []
        attempts = self._attempts
        for permit in self.admission.take(
            open_shards, now_ms, mono_ms, settled_ms, most=self._starts_left()
        ):
            number, serial = permit.shard, permit.serial
            held = attempts.get(serial)
            if held is not None and held.permit is not None:
                # Rescheduled while it was in hand: its start is on its way already.
                twice.append(permit)
                continue
            attempts[serial] = _Attempt(number, permit)
            self._unbegun.add(serial)
            picks[number].append(serial)
        for permit in twice:
            self.admission.undo(permit, now_ms)
        if self.admission.thinned:
            for number in self.admission.thinned:
                self._shards[number].is_stirred = True
            self.admission.thinned.clear()
        for number in picks:
            self._prepare(self._shards[number], picks[number])

    def wait_ms(self, now_ms: int, mono_ms: int) -> int | None:
        """How long until time alone may let something start; None: it will not."""
        if not self.is_admitting or not self._starts_left():
            return None  # those that become durable begin a pass by themselves
        return self.admission.wait_ms(now_ms, mono_ms)

    def cancel(self, serial: int, fence: int, reason: str) -> None:
        """That the ticket is to be cancelled is durable: its attempt hears of it."""
        self.send_jobs()  # it may be about to start
        self._runner.cancel(serial, fence, reason, is_for_good=True)

    def stop_admitting(self) -> None:
        """From here on nothing starts."""
        self.is_stopping = True
        self.is_admitting = False
        self.runs_nothing = "the engine stops"

    def _prepare(self, shard: "ShardHost", serials: list[int]) -> None:
        """Has the payloads read that are not in memory; what is there starts now."""
        known = zip(serials, shard.core.payloads(serials), strict=True)
        ready = {serial: payload for serial, payload in known if payload is not None}
        if ready:
            self._start(shard, ready)
        if len(ready) < len(serials):
            self._fetch(shard, [serial for serial in serials if serial not in ready])

    def _fetch(self, shard: "ShardHost", serials: list[int]) -> None:
        reader = shard.reader

        def done(got: Any) -> None:
            stale = shard.is_stale(min(body.snapshot_commit for body in got))
            found: dict[int, bytes] = {}
            again: list[int] = []
            for serial, body in zip(serials, got, strict=True):
                if body.is_damaged or (body.body is None and not stale):
                    self._release(serial)
                    ticket = shard.core.hot.get(serial)
                    # One that has ended meanwhile has lost its payload by that.
                    if body.is_damaged or (ticket is not None and ticket.state == PENDING):
                        shard.quarantine(serial)
                elif stale:
                    again.append(serial)
                else:
                    found[serial] = cast(bytes, body.body)
            if found:
                self._start(shard, found)
            if again:
                self._fetch(shard, again)

        shard.read(lambda: [reader.body(serial) for serial in serials], done)

    def _start(self, shard: "ShardHost", payloads: dict[int, bytes]) -> None:
        command = self._command(shard.core.memory.hot, list(payloads))
        ask = Ask(
            command,
            then=lambda answers, error: self._started(shard, payloads, answers, error),
        )
        if type(command) is StartAlike:
            shard.decide(ask)
            shard.dues.reckon_start(shard)
        else:
            shard.decide_now(ask)

    def _command(self, hot: Mapping[int, Ticket], serials: list[int]) -> Start | StartAlike:
        """What the code says of each start; the same for all of a task that bring no options."""
        tickets = [hot.get(serial) for serial in serials]
        if not (self._zombies or self.outlived):
            alike = self._alike(serials, tickets)
            if alike is not None:
                return alike
        rules = self._rules
        items: list[StartItem] = []
        plain: dict[str, tuple[int | None, int | None, int]] = {}
        for serial, ticket in zip(serials, tickets, strict=True):
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
        return Start(items)

    def _alike(self, serials: list[int], tickets: Sequence[Ticket | None]) -> StartAlike | None:
        """The start of tickets of one task that bring no options; None: they are not that."""
        first = tickets[0]
        if first is None:
            return None
        task = first.task
        for ticket in tickets:
            if ticket is None or ticket.options is not None or ticket.task != task:
                return None
        policy = self._rules.policy_of(first)
        if policy.max_elapsed_ms is not None:
            return None
        return StartAlike(serials, policy.max_attempts, self._rules.on_crash_of(task))

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
        answers: Sequence[Any] | None,
        error: BaseException | None,
    ) -> None:
        """The Started is durable: the handlers may run."""
        self._unbegun.difference_update(payloads)
        if answers is None:
            for serial in payloads:
                self._release(serial)
            return
        if type(answers) is AllStarted:
            self._run_all(shard, answers.of, payloads)
            return
        started: list[tuple[int, int, int]] = []
        for answer in answers:
            if isinstance(answer, Answer):
                started.append((answer.serial, answer.part, answer.fence))
            else:
                self._refused(shard, answer)
        self._run_all(shard, started, payloads)

    def _refused(self, shard: "ShardHost", refusal: Refusal) -> None:
        """It may not start now."""
        shard.is_stirred = True
        serial = refusal.serial
        self._release(serial)
        if refusal.code == "clock":
            # It stays in hand: back in its lane it would be picked before all others again.
            self._clock_held.append((shard, serial))
        elif refusal.code == "outlived" and self.is_outlived(serial):
            self._outlived_held[serial] = shard
        else:
            shard.placement.give_back(serial, shard.host.now_ms)

    def _give_back_clock_held(self) -> None:
        """The clocks agree again: what was held because they did not may be picked."""
        held, self._clock_held = self._clock_held, []
        for shard, serial in held:
            if shard.host.settled_ms < shard.host.now_ms:
                self._clock_held.append((shard, serial))
            elif serial not in self._attempts:
                shard.is_stirred = True  # it may be due later by now
                shard.placement.give_back(serial, shard.host.now_ms)

    def _run_all(
        self,
        shard: "ShardHost",
        started: Iterable[tuple[int, int, int]],
        payloads: Mapping[int, bytes],
    ) -> None:
        """Each by serial, part and fence. A ticket is copied: its head goes on changing."""
        attempts, hot, job_of = self._attempts, shard.core.memory.hot, self._rules.job_of
        jobs, without = self.jobs, list[Outcome]()
        for serial, _, fence in started:
            attempt = attempts[serial]
            attempt.fence = fence
            ticket = hot.get(serial)
            job = None if ticket is None else job_of(replace(ticket), payloads[serial])
            if job is None:  # the handler went away between the pick and now
                without.append(Outcome(serial, fence, "released", has_begun=False))
                continue
            attempt.is_out = True
            jobs.append(job)
        if without:
            self.settle(without, shard.number)

    def send_jobs(self) -> bool:
        """Hands what may run to the executors, all in one call; whether there was anything."""
        if not self.jobs:
            return False
        jobs, self.jobs = self.jobs, []
        self._runner.start(jobs)
        return True

    # ------------------------------------------------------------------------------- settling

    def settle_all(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes as the executors deliver them, of any shard."""
        by_shard: dict[int, list[Outcome]] = defaultdict(list)
        second: list[Outcome] = []
        attempts = self._attempts
        for outcome in outcomes:
            attempt = attempts.get(outcome.serial)
            if attempt is None or not attempt.is_out or attempt.fence != outcome.fence:
                second.append(outcome)
                continue
            attempt.is_out = False
            by_shard[attempt.number].append(outcome)
        for number, listed in by_shard.items():
            self.finished += len(listed)
            self.settle(listed, number)
        # After the others: one of them may be what made its attempt a zombie.
        for outcome in second:
            zombie = self._zombies.get(outcome.serial)
            if zombie is not None and zombie.fence == outcome.fence:
                self._bury_zombie(zombie, outcome)

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
        self._end_all(number, outcomes)
        changed, self._changed = self._changed, []
        if changed and self._breakers is not None:
            self._breakers.expect_breakers(changed)
        for listed, size in portions(outcomes):
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
        def settled(answers: Sequence[Any] | None, error: BaseException | None) -> None:
            """Durable, or thrown away with its shard's memory: then it is settled again, which an
            outcome that was durable after all does not mind."""
            if answers is None and shard.status == "recovering":
                self._put_settle(shard, outcomes, size, changed, is_repeated=True)
                return
            self._forget_all(outcomes)
            if answers is not None and not is_repeated and type(answers) is not AllSettled:
                shard.refused_outcomes += sum([type(each) is Refusal for each in answers])
            if changed and self._breakers is not None:
                self._breakers.note_breakers(changed)

        shard.put(Ask(Settle(outcomes), then=settled, size=size))

    def _forget_all(self, outcomes: Iterable[Outcome]) -> None:
        """They are durable. By now a ticket may be on its way to its next attempt."""
        attempts = self._attempts
        for outcome in outcomes:
            attempt = attempts.get(outcome.serial)
            if attempt is not None and attempt.fence == outcome.fence:
                del attempts[outcome.serial]

    def _end_all(self, number: int, outcomes: Iterable[Outcome]) -> None:
        """`_end` of each; what plain attempts had is freed by the number of them."""
        attempts, last, count = self._attempts, None, 0  # as many were like the last one
        for outcome in outcomes:
            attempt = attempts.get(outcome.serial)
            permit = None if attempt is None else attempt.permit
            if attempt is None or permit is None or not permit.is_plain or outcome.lives_on:
                self._end(number, outcome)
                continue
            attempt.permit = None
            if last is not None and permit.plan is not last.plan:
                self.admission.release_plain(last, count)
                count = 0
            last, count = permit, count + 1
        if last is not None:
            self.admission.release_plain(last, count)

    def _end(self, number: int, outcome: Outcome) -> None:
        """Its breaker hears how the attempt ended. What it had is free, unless its handler goes on
        all the same: then that is when it has physically ended."""
        attempt = self._attempts.get(outcome.serial)
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

    def _release(self, serial: int) -> None:
        """What was in hand for an attempt that never began is free again."""
        self._unbegun.discard(serial)
        attempt = self._attempts.pop(serial, None)
        if attempt is not None and attempt.permit is not None:
            self.admission.undo(attempt.permit, self._shards[attempt.number].host.now_ms)

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
            attempt = self._attempts.get(serial)
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
        for serial, attempt in list(self._attempts.items()):
            if attempt.number == shard.number and attempt.fence == -1:
                self._release(serial)

    def give_back(self, unfinished: Iterable[tuple[int, int, bool]]) -> int:
        """At the end of a stop: what still runs is given back without spending an attempt."""
        by_shard: dict[int, list[Outcome]] = defaultdict(list)
        count = 0
        for serial, fence, has_begun in unfinished:
            attempt = self._attempts.get(serial)
            if attempt is not None and attempt.is_out:
                attempt.is_out = False
                count += 1
                outcome = Outcome(serial, fence, "released", has_begun=has_begun)
                by_shard[attempt.number].append(outcome)
        for serial, attempt in self._attempts.items():
            if attempt.is_out:
                # It ended while the executors were closed: its outcome went nowhere.
                attempt.is_out = False
                count += 1
                by_shard[attempt.number].append(Outcome(serial, attempt.fence, "released"))
        for number, listed in by_shard.items():
            self.settle(listed, number)
        return count
