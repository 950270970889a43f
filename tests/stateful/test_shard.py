"""A shard's core is a dict of tickets: whatever is done to both, and to the store meanwhile.

The machine is the host at its worst: reads arrive late, checkpoints take their time or fail, the
clock goes back, memory is thrown away. After each step the core equals the model, and every
invariant of `shard/check.py` holds over memory and store together.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kit.model import Model
from kit.rig import Rig, codes
from parkade.shard import DEAD, PENDING, RUNNING, UNREAD, unique_name
from parkade.shard.commands import (
    Bookmark,
    Cancel,
    CancelMany,
    Drop,
    Expire,
    Forget,
    LostItem,
    Outcome,
    Reschedule,
    Resolve,
    Revive,
    Settle,
    SettleLost,
    Start,
    StartItem,
    Submit,
)
from parkade.store.record import ErrorText, Options, ProgressNote, Submitted, UniqueClaim

# Few distinct delays: tickets meet at one millisecond, before, at and past the horizon (1,000 ms).
delays = st.sampled_from((0, 0, 0, 1, 5, 5, 400, 499, 501, 999, 1_000, 1_001, 1_500, 9_000))
steps = st.sampled_from((0, 1, 5, 100, 499, 501, 1_000, 1_001, 5_000, -1, -300, -1_100, -6_000))
picks = st.integers(0, 1_000_000)
kinds = st.sampled_from(
    [
        "done",
        "done",
        "transient",
        "transient",
        "failed",
        "unsafe",
        "ambiguous",
        "snooze",
        "drop",
        "cancelled",
        "timeout",
        "lease",
        "bad_payload",
        "released",
        "result_lost",
    ]
)
options = st.one_of(
    st.none(),
    st.builds(
        Options,
        target=st.sampled_from((None, "x")),
        priority=st.integers(0, 1),
        expires_ms=st.sampled_from((None, 5, 600)),
        max_attempts=st.sampled_from((None, 1, 2, -1)),
        max_elapsed_ms=st.sampled_from((None, None, 2_000)),
    ),
)
FIELDS = [
    "state",
    "due_ms",
    "first_due_ms",
    "attempts",
    "fence",
    "snoozes",
    "deaths",
    "is_suspect",
    "maybe_applied",
    "is_ambiguous",
    "why",
    "cancel_reason",
    "progress",
    "has_bookmark",
]


class ShardIsADict(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.model = Model()

    # ------------------------------------------------------------------ callers

    @rule(delay=delays, count=st.integers(1, 7), task=st.sampled_from("tu"), chosen=options)
    def submit(self, delay: int, count: int, task: str, chosen: Options | None) -> None:
        drafts = [self.rig.draft(delay, task=task, options=chosen) for _ in range(count)]
        self._submit(drafts, None)

    @rule(delay=delays, key=st.sampled_from("kl"), chosen=options, count=st.integers(1, 3))
    def submit_with_key(self, delay: int, key: str, chosen: Options | None, count: int) -> None:
        drafts = [self.rig.draft(delay, key=key, options=chosen) for _ in range(count)]
        self._submit(drafts, None)

    @rule(
        delay=delays,
        name=st.sampled_from("ab"),
        mode=st.integers(0, 2),
        key=st.sampled_from((None, "k")),
        conflicts=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    )
    def submit_unique(
        self, delay: int, name: str, mode: int, key: str | None, conflicts: list[int]
    ) -> None:
        until_ms = self.rig.now_ms + 700 if mode == 2 else -1
        claim = UniqueClaim(name, mode, until_ms, 500)
        drafts = [self.rig.draft(delay, key=key, unique=claim) for _ in conflicts]
        self._submit(drafts, conflicts)

    def _submit(self, drafts: list[Submitted], conflicts: list[int] | None) -> None:
        rig = self.rig
        expected = [
            self.model.submit(draft, conflict, rig.now_ms, rig.settled_ms)
            for draft, conflict in zip(drafts, conflicts or [0] * len(drafts), strict=True)
        ]
        assert codes(rig.do(Submit(drafts, conflicts)).answers) == expected

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        serial = self._any(pick)
        expected = self.model.cancel(serial, "enough", self.rig.now_ms)
        assert codes(self.rig.do(Cancel(serial, "enough")).answers) == [expected]

    @rule(pick=picks, count=st.integers(1, 6))
    def cancel_many(self, pick: int, count: int) -> None:
        serials = sorted({self._any(pick + 7 * nth) for nth in range(count)})
        expected = [self.model.cancel(serial, "enough", self.rig.now_ms) for serial in serials]
        answers = codes(self.rig.do(CancelMany([*serials, serials[0]], "enough")).answers)
        assert answers == [*expected, "unknown"]

    @rule(pick=picks, delay=delays)
    def reschedule(self, pick: int, delay: int) -> None:
        serial, due_ms = self._any(pick), self.rig.now_ms + delay
        expected = self.model.reschedule(serial, due_ms)
        assert codes(self.rig.do(Reschedule(serial, due_ms)).answers) == [expected]

    @precondition(lambda self: self._in_state(DEAD))
    @rule(pick=picks, delay=delays, accept=st.booleans(), keep=st.booleans())
    def revive(self, pick: int, delay: int, accept: bool, keep: bool) -> None:
        serial, rig = self._any(pick, DEAD), self.rig
        due_ms = rig.now_ms + delay
        expected = self.model.revive(serial, due_ms, accept, keep, rig.settled_ms)
        command = Revive([serial], due_ms, keep, accept_ambiguous=accept)
        assert codes(rig.do(command).answers) == [expected]

    @precondition(lambda self: self._in_state(DEAD))
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        serial = self._any(pick, DEAD)
        assert codes(self.rig.do(Drop([serial, serial])).answers) == [
            self.model.drop(serial),
            "unknown",
        ]

    @precondition(lambda self: self._in_state(DEAD))
    @rule(pick=picks)
    def resolve(self, pick: int) -> None:
        serial = self._any(pick, DEAD)
        expected = self.model.resolve(serial, b"checked", self.rig.now_ms)
        assert codes(self.rig.do(Resolve(serial, b"checked")).answers) == [expected]

    @rule(pick=picks, task=st.sampled_from("tu"), state=st.integers(2, 5))
    def forget(self, pick: int, task: str, state: int) -> None:
        ended = [
            serial
            for serial, entry in self.model.tickets.items()
            if (entry.draft.task, entry.state) == (task, state)
        ]
        serials = ended[: pick % 4]
        self.rig.do(Forget(task, state, [*serials, *serials]))
        for serial in serials:
            self.model.forget(serial)

    # ------------------------------------------------------------------ attempts

    @rule(count=st.integers(1, 4), on_crash=st.sampled_from((0, 0, 1)))
    def start(self, count: int, on_crash: int) -> None:
        """Start what is first in the lanes, as far as anything has come in."""
        rig = self.rig
        taken = [s for lane in rig.lanes() for _ in range(count) if (s := rig.pop(lane))]
        self._start(taken, on_crash)

    def _start(self, taken: list[int], on_crash: int) -> None:
        rig = self.rig
        before = {serial: rig.head(serial) for serial in taken}
        items = [StartItem(serial, on_crash=on_crash) for serial in taken]
        answers = codes(rig.do(Start(items)).answers)
        has_suspect = False
        for serial, code in zip(taken, answers, strict=True):
            if code in ("suspect", "clock"):
                assert code != "suspect" or (before[serial].is_suspect and has_suspect)
                rig.core.placement.give_back(serial, rig.now_ms)
                continue
            assert self.model.start(serial, on_crash, rig.now_ms, rig.settled_ms) == code
            has_suspect = has_suspect or before[serial].is_suspect

    @rule(keep_in_hand=st.booleans())
    def take_in_hand(self, keep_in_hand: bool) -> None:
        """Admission takes a ticket and does not start it."""
        rig = self.rig
        for lane in rig.lanes():
            serial = rig.pop(lane)
            if serial is not None and not keep_in_hand:
                rig.core.placement.give_back(serial, rig.now_ms)

    @rule()
    def give_back_what_is_in_hand(self) -> None:
        rig = self.rig
        seats = rig.core.placement.lanes.seats
        for serial in [serial for serial, seat in seats.items() if seat == 2]:
            rig.core.placement.give_back(serial, rig.now_ms)

    @precondition(lambda self: self._in_state(RUNNING))
    @rule(
        pick=picks,
        kind=kinds,
        wait=delays,
        begun=st.booleans(),
        attempts_max=st.sampled_from((None, 2)),
        count=st.integers(1, 3),
    )
    def settle(
        self, pick: int, kind: str, wait: int, begun: bool, attempts_max: int | None, count: int
    ) -> None:
        running = [s for s, entry in self.model.tickets.items() if entry.state == RUNNING]
        start = pick % len(running)
        outcomes = [
            Outcome(
                serial,
                self.model.tickets[serial].fence,
                kind,
                b"result",
                ErrorText("E", "it failed") if kind in ("transient", "failed") else None,
                wait,
                attempts_max,
                3_000,
                1,
                begun,
            )
            for serial in running[start : start + count]
        ]
        self._settle([*outcomes, outcomes[0]])

    @rule(pick=picks, back=st.integers(0, 2), kind=st.sampled_from(("done", "transient")))
    def settle_what_was_given_up(self, pick: int, back: int, kind: str) -> None:
        serial = self._any(pick)
        entry = self.model.tickets.get(serial)
        if entry is None or entry.state == RUNNING or entry.fence <= back:
            return
        self._settle([Outcome(serial, entry.fence - back, kind)])

    @rule(pick=picks, back=st.integers(0, 1), value=st.sampled_from((None, b"a", b"b" * 90)))
    def save(self, pick: int, back: int, value: bytes | None) -> None:
        """An attempt saves a value, and tells how far it is."""
        running = [s for s, entry in self.model.tickets.items() if entry.state == RUNNING]
        serial = running[pick % len(running)] if running else self._any(pick)
        entry = self.model.tickets.get(serial)
        fence = 1 if entry is None else entry.fence - back
        note = ProgressNote(pick, None, "", self.rig.now_ms) if pick % 2 else None
        expected = self.model.bookmark(serial, fence, value, note)
        assert codes(self.rig.do(Bookmark(serial, fence, value, note)).answers) == [expected]
        if expected == "saved" and value is not None:
            assert self.rig.core.bookmark(serial) == value

    def _settle(self, outcomes: list[Outcome]) -> None:
        rig = self.rig
        expected = [
            "refused"
            if outcome in outcomes[:nth]
            else self.model.settle(outcome, rig.now_ms, rig.settled_ms)
            for nth, outcome in enumerate(outcomes)
        ]
        assert codes(rig.do(Settle(outcomes)).answers) == expected

    # ------------------------------------------------------------------ time, reads, checkpoints

    @rule(step=steps, settles=st.booleans())
    def pass_time(self, step: int, settles: bool) -> None:
        self.rig.now_ms += step
        if settles:
            self.rig.settled_ms = max(self.rig.settled_ms, self.rig.now_ms)

    @rule(limit=st.sampled_from((1, 3, 4096)))
    def advance(self, limit: int) -> None:
        self._expire(self.rig.advance(limit))

    def _expire(self, serials: list[int]) -> None:
        rig = self.rig
        expected = [self.model.expire(s, rig.now_ms, rig.settled_ms) for s in serials]
        assert codes(rig.do(Expire(serials)).answers) == expected

    @rule()
    def begin_sweep(self) -> None:
        self.rig.begin_sweep()

    @rule()
    def begin_scout(self) -> None:
        self.rig.begin_scout()

    @rule()
    def begin_loads(self) -> None:
        self.rig.begin_loads()

    @rule()
    def begin_refills(self) -> None:
        self.rig.begin_refills()

    @rule()
    def end_reads(self) -> None:
        self.rig.end_reads()

    @rule()
    def come_to_rest(self) -> None:
        """With the store at hand nothing that is due stays anywhere but in its lane."""
        while expired := self.rig.settle_down():
            self._expire(expired)
        self.rig.check_nothing_due_is_forgotten()

    @precondition(lambda self: self.rig.building is None and self.rig.committed is None)
    @rule()
    def cut(self) -> None:
        self.rig.cut()

    @precondition(lambda self: self.rig.building is not None)
    @rule(count=st.integers(1, 5))
    def build_a_slice(self, count: int) -> None:
        assert self.rig.building is not None
        self.rig.building.slice(count)

    @precondition(lambda self: self.rig.building is not None)
    @rule()
    def commit(self) -> None:
        self.rig.commit()

    @precondition(lambda self: self.rig.building is not None)
    @rule()
    def fail_to_commit(self) -> None:
        self.rig.fail_commit()

    @precondition(lambda self: self.rig.committed is not None)
    @rule()
    def complete(self) -> None:
        if not self.rig.core.placement.hold_completion:
            self.rig.complete()

    @precondition(lambda self: self.rig.building is None and self.rig.committed is None)
    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    # ------------------------------------------------------------------ crashes

    @rule(is_lost=st.booleans(), wait=delays)
    def crash(self, is_lost: bool, wait: int) -> None:
        """Live equals replay; then what ran is lost, or handed to the recovered shard."""
        rig = self.rig
        live = rig.state()
        rig.reopen()
        assert rig.state() == live
        running = rig.adopt_running()
        assert running == live["running"]
        if not is_lost:
            return
        suspects = [serial for serial in running if self.model.tickets[serial].is_suspect]
        items = [
            LostItem(serial, self.model.tickets[serial].fence, wait, None, suspects == [serial])
            for serial in running
        ]
        for item in items:
            self.model.lose(item, rig.now_ms, rig.settled_ms)
        assert set(codes(rig.do(SettleLost(items)).answers)) <= {"settled"}

    # ------------------------------------------------------------------ what holds

    @invariant()
    def every_invariant_holds(self) -> None:
        self.rig.checked()

    @invariant()
    def the_core_is_the_model(self) -> None:
        rig, model = self.rig, self.model
        tickets = rig.tickets()
        assert tickets.keys() == model.tickets.keys()
        for serial, ticket in tickets.items():
            entry = model.tickets[serial]
            seen = {name: getattr(ticket, name) for name in FIELDS}
            assert seen == {name: getattr(entry, name) for name in FIELDS}, serial
            assert rig.body(serial) == entry.body, serial
        assert rig.core.counters == model.counters()
        for name, (serial, until_ms) in model.names.items():
            digest = unique_name(*name[:2], name[2])
            known = rig.core.unique_row(digest)
            row = rig.store.uniques.get(digest) if known is UNREAD else known
            assert row is not None and row.serial == serial, name
            assert row.until_ms == (-1 if until_ms is None else until_ms), name

    def teardown(self) -> None:
        """Once faults stop nothing is stuck: every pending ticket gets its end."""
        rig = self.rig
        rig.reads.clear()
        if rig.building is not None:
            rig.commit()
        if rig.committed is not None:
            rig.complete()
        rig.reopen()
        rig.adopt_running()
        self._settle([Outcome(s, rig.head(s).fence, "done") for s in sorted(rig.core.running)])
        rig.pass_ms(max([20_000, *(t.due_ms - rig.now_ms for t in rig.tickets().values())]))
        for nth in range(1_000):
            expired = rig.settle_down()
            self._expire(expired)
            taken = rig.pop_all()
            if not (taken or expired or rig.core.placement.wants_checkpoint):
                break
            self._start(taken, 0)
            self._settle([Outcome(s, rig.head(s).fence, "done") for s in sorted(rig.core.running)])
            if nth % 3 == 0:
                rig.checkpoint()
        self.every_invariant_holds()
        self.the_core_is_the_model()
        waiting = [s for s, t in rig.tickets().items() if t.state in (PENDING, RUNNING)]
        assert not waiting, [(s, rig.core.placement.where(s), rig.head(s)) for s in waiting]

    # ------------------------------------------------------------------ choosing

    def _in_state(self, state: int) -> bool:
        return any(entry.state == state for entry in self.model.tickets.values())

    def _any(self, pick: int, state: int | None = None) -> int:
        """A ticket of the model, or a serial that was never given out."""
        serials = [
            serial
            for serial, entry in self.model.tickets.items()
            if state is None or entry.state == state
        ]
        return serials[pick % len(serials)] if serials else 1


TestShardIsADict = ShardIsADict.TestCase
TestShardIsADict.settings = settings(stateful_step_count=60)
