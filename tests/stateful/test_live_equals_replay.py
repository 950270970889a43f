"""Live equals replay: whatever a shard goes through, what a recovery finds is what it was.

The machine steps the real host of one shard over its real journal and store: frames, reads,
commits and completions in any order, disks that fail and lose power, clocks that jump. After each
step every invariant holds, the placement of each ticket among them, and the shard is the model;
after each crash it is in a state that it has been in, with all that anybody was told. At the end
nothing is stuck.
"""

from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kit.model import DEAD, PENDING, RUNNING
from kit.stepped import BOUNDS, ODD_BOUNDS, STEPS, KeepingTasks, Stepped, stepped
from parkade.asks import AwaitEnd, BookmarkOf, GroupEnds, GroupsOf, Look, PageOf, Rehearse
from parkade.finding import ALL_STATES, indexes_of
from parkade.index_keys import group_prefix
from parkade.keeping import Keeping
from parkade.shard import Bounds
from parkade.shard.commands import (
    Bookmark,
    Cancel,
    CancelMany,
    Drop,
    Forget,
    Outcome,
    Reschedule,
    Resolve,
    Revive,
    Settle,
)
from parkade.shard.lanes import SERIAL_BITS
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText, Options, ProgressNote, Submitted, UniqueClaim

DAY_MS = 86_400_000
picks = st.integers(0, 1_000_000)
# Around now, around the horizon, in each kind of bucket of the agenda, and in none.
delays = st.sampled_from(
    (0, 0, 0, 1, 5, 400, 999, 1_000, 1_001, 1_500, 9_000, 4_000_000, 3 * DAY_MS)
)
spans = st.sampled_from((1, 5, 100, 501, 1_000, 1_001, 2_500, 6_000, 700_000, 5_000_000, DAY_MS))
tasks = st.sampled_from("tu")
options = st.one_of(
    st.none(),
    st.none(),
    st.builds(
        Options,
        target=st.sampled_from((None, "x")),
        priority=st.integers(0, 1),
        expires_ms=st.sampled_from((None, 5, 1_200)),
        max_attempts=st.sampled_from((None, 1, 2)),
        max_elapsed_ms=st.sampled_from((None, None, 2_000)),
        routes=st.sampled_from((None, None, ["t", "t", "t"])),
        tags=st.sampled_from((None, {"campaign": "may"}, {"campaign": "june", "a": "b"})),
        indexed=st.just(["campaign"]),
    ),
)
kinds = st.sampled_from(
    (
        "done", "done", "done", "transient", "transient", "failed", "unsafe", "ambiguous", "snooze",
        "drop", "timeout", "lease", "bad_payload", "released", "result_lost",
    )
)  # fmt: skip
# What a handler states itself.
BEARING = ("done", "failed", "unsafe", "ambiguous", "snooze", "drop", "result_lost")
work = st.lists(st.sampled_from((*STEPS, "pass", "io", "writer")), max_size=12)
_GROUP = Ticket.__struct_fields__.index("group")


KEEPINGS = (
    Keeping(),
    Keeping(2_000),
    Keeping(4_000, 3, 1_000),
    Keeping(None, 2),
    Keeping(1_000, 4, None, KeepingTasks({"t": 5_000, "u": None})),
)


class LiveEqualsReplay(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.shard: Stepped

    @initialize(
        keeping=st.sampled_from(KEEPINGS),
        durability=st.sampled_from(("disk", "disk", "process")),
        bounds=st.sampled_from((BOUNDS, *ODD_BOUNDS)),
    )
    def open(self, keeping: Keeping, durability: str, bounds: Bounds) -> None:
        options = {"keeping": keeping, "durability": durability, "bounds": bounds}
        self.shard = self.stack.enter_context(stepped(**options))

    # ------------------------------------------------------------------ callers

    @rule(delay=delays, count=st.integers(1, 3), task=tasks, chosen=options, steps=work)
    def submit(
        self, delay: int, count: int, task: str, chosen: Options | None, steps: list[str]
    ) -> None:
        shard = self.shard
        due_ms = shard.now_ms + delay
        for _ in range(count):
            shard.submit(shard.draft(due_ms, task, options=chosen))
        self._work(steps)

    @precondition(lambda self: len(self.shard.witness.tickets) < 60)
    @rule(count=st.integers(3, 9), delay=st.sampled_from((0, 300, 1_100)), task=tasks)
    def submit_many_and_go_on(self, count: int, delay: int, task: str) -> None:
        """More than a window, a wheel and the places take."""
        shard = self.shard
        for nth in range(count):
            shard.submit(shard.draft(shard.now_ms + delay + nth % 2, task))
        for step in ("pass", "io", "pass", "io", "pass", "writer"):
            shard.step(step)

    @rule(offset=st.integers(-1, 1), count=st.integers(1, 5))
    def submit_around_the_horizon(self, offset: int, count: int) -> None:
        shard = self.shard
        due_ms = max(shard.now_ms, (shard.shard.placement.horizon >> SERIAL_BITS) + offset)
        for _ in range(count):
            shard.submit(shard.draft(due_ms))

    @rule(delay=delays, key=st.sampled_from("kl"), chosen=options, count=st.integers(1, 3))
    def submit_with_key(self, delay: int, key: str, chosen: Options | None, count: int) -> None:
        shard = self.shard
        for _ in range(count):
            shard.submit(shard.draft(shard.now_ms + delay, key=key, options=chosen))

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
        shard = self.shard
        claim = UniqueClaim(name, mode, shard.now_ms + 700 if mode == 2 else -1, 500)
        due_ms = shard.now_ms + delay
        drafts = [shard.draft(due_ms, key=key, unique=claim) for _ in conflicts]
        shard.submit(*drafts, modes=conflicts)

    @rule(pick=picks, steps=work)
    def cancel(self, pick: int, steps: list[str]) -> None:
        self.shard.ask(Cancel(self._any(pick), "enough"))
        self._work(steps)

    @rule(pick=picks, count=st.integers(1, 6), steps=work)
    def cancel_many(self, pick: int, count: int, steps: list[str]) -> None:
        serials = sorted({self._any(pick + 7 * nth) for nth in range(count)})
        self.shard.ask(CancelMany(serials, "enough"), 160 * len(serials))
        self._work(steps)

    @rule(pick=picks, delay=delays, steps=work)
    def reschedule(self, pick: int, delay: int, steps: list[str]) -> None:
        shard = self.shard
        shard.ask(Reschedule(self._any(pick, PENDING), shard.now_ms + delay))
        self._work(steps)

    @precondition(lambda self: self._in_state(DEAD))
    @rule(
        what=st.sampled_from(("revive", "revive", "drop", "resolve")),
        pick=picks,
        delay=delays,
        accept=st.booleans(),
        keep=st.booleans(),
        steps=work,
    )
    def decide_over_a_dead_one(
        self, what: str, pick: int, delay: int, accept: bool, keep: bool, steps: list[str]
    ) -> None:
        shard, serial = self.shard, self._any(pick, DEAD)
        if what == "revive":
            shard.ask(Revive([serial], shard.now_ms + delay, keep, accept_ambiguous=accept))
        elif what == "drop":
            shard.ask(Drop([serial]))
        else:
            shard.ask(Resolve(serial, b"checked"))
        self._work(steps)

    @rule(
        count=st.integers(2, 6),
        delay=delays,
        step=st.integers(0, 700),
        payload=st.sampled_from((None, b"other")),
        is_dry=st.booleans(),
        steps=work,
    )
    def revive_many(
        self, count: int, delay: int, step: int, payload: bytes | None, is_dry: bool,
        steps: list[str],
    ) -> None:  # fmt: skip
        """With a turn for each, and perhaps other arguments; or only rehearsed."""
        shard = self.shard
        entries = shard.witness.model.tickets
        serials = [serial for serial, entry in entries.items() if entry.state == DEAD][:count]
        base_ms = shard.now_ms + delay
        dues_ms = [base_ms + step * nth for nth in range(len(serials))]
        command = Revive(serials, base_ms, False, payload, True, dues_ms)
        shard.ask(Rehearse(command) if is_dry else command)
        self._work(steps)

    @rule(pick=picks, limit=st.integers(1, 3), wants_ends=st.booleans(), steps=work)
    def list_groups(self, pick: int, limit: int, wants_ends: bool, steps: list[str]) -> None:
        groups = sorted(
            {
                group
                for shadow in self.shard.witness.tickets.values()
                if (group := shadow.head[_GROUP]) is not None
            }
        )
        group = groups[pick % len(groups)] if groups else b""
        if wants_ends and groups:
            self.shard.ask(GroupEnds(groups[:limit]))
            self.shard.ask(PageOf(((group_prefix(group),),), 1 << 64, limit, DEAD, group=group))
        else:
            self.shard.ask(GroupsOf(group if pick % 3 else b"", limit))
        self._work(steps)

    @rule(pick=picks, task=tasks, state=st.integers(2, 5))
    def forget(self, pick: int, task: str, state: int) -> None:
        ended = [
            serial
            for serial, entry in self.shard.witness.model.tickets.items()
            if (entry.draft.task, entry.state) == (task, state)
        ]
        self.shard.ask(Forget(task, state, ended[: pick % 4]))

    @rule(pick=picks, what=st.integers(0, 3), steps=work)
    def look(self, pick: int, what: int, steps: list[str]) -> None:
        serial = self._any(pick)
        inquiries = (
            Look(serial), Look(serial, wants_body=True), Look(serial, wants_history=True),
            AwaitEnd(serial),
        )  # fmt: skip
        self.shard.ask(inquiries[what])
        self._work(steps)

    @rule(
        state=st.sampled_from((None, 0, 1, 2, 3)),
        task=st.sampled_from((None, "t")),
        has_key=st.booleans(),
        limit=st.integers(1, 5),
        pick=picks,
        steps=work,
    )
    def list_some(
        self,
        state: int | None,
        task: str | None,
        has_key: bool,
        limit: int,
        pick: int,
        steps: list[str],
    ) -> None:
        key = "k" if has_key else None
        target = "x" if pick % 3 == 0 else None
        tag = ("campaign", "may") if pick % 5 == 0 else None
        states = ALL_STATES if state is None else (state,)
        indexes = indexes_of(states, task, key, target, tag)
        before = self._any(pick) if pick % 2 else 1 << 64
        asked = PageOf(
            indexes, before, limit, state, task, key, target=target, tag=tag,
            is_unended=pick % 7 == 0,
        )  # fmt: skip
        self.shard.ask(asked)
        self._work(steps)

    # ------------------------------------------------------------------ attempts

    @precondition(lambda self: self.shard.handlers.alive)
    @rule(
        pick=picks,
        kind=kinds,
        wait=delays,
        begun=st.booleans(),
        children=st.lists(st.sampled_from(range(6)), max_size=4),
        steps=work,
    )
    def settle(
        self, pick: int, kind: str, wait: int, begun: bool, children: list[int], steps: list[str]
    ) -> None:
        """An attempt ends, as it may, and brings forth what it may."""
        jobs = list(self.shard.handlers.alive.values())
        error = ErrorText("E", "ab"[pick % 2]) if kind in ("transient", "failed") else None
        more: dict[str, Any] = {"result": b"result", "error": error, "wait_ms": wait}
        more |= {"max_attempts": 3, "max_snoozes": 1, "has_begun": begun}
        if kind in BEARING and len(self.shard.witness.tickets) < 60:
            more["born"] = [self._child(how) for how in children] or None
        self.shard.settle(jobs[pick % len(jobs)], kind, **more)
        self._work(steps)

    def _child(self, how: int) -> Submitted:
        """Born at once; of this shard by its key, or its unique; of another that is not open."""
        shard = self.shard
        claim = UniqueClaim("a", how % 2, -1, 500, how == 4)
        match how:
            case 0:
                return shard.draft()
            case 1:
                return shard.draft(shard.now_ms + 400, key="k")
            case 2:
                return shard.draft(part=7)
            case _:
                return shard.draft(shard.now_ms + 5, unique=claim, key=None if how < 5 else "k")

    @rule(pick=picks, back=st.integers(0, 2), kind=st.sampled_from(("done", "transient")))
    def settle_what_was_given_up(self, pick: int, back: int, kind: str) -> None:
        serial = self._any(pick)
        entry = self.shard.witness.model.tickets.get(serial)
        if entry is None or entry.fence <= back:
            return
        if back or entry.state != RUNNING:
            self.shard.ask(Settle([Outcome(serial, entry.fence - back, kind)]))

    @rule(
        pick=picks, back=st.sampled_from((0, 0, 0, 1)), size=st.sampled_from((None, 1, 40, 900)),
        tells=st.booleans(), steps=work,
    )  # fmt: skip
    def save(self, pick: int, back: int, size: int | None, tells: bool, steps: list[str]) -> None:
        """An attempt saves something for the next one, or tells how far it is."""
        serials = [*self.shard.handlers.alive] or [self._any(pick)]
        serial = serials[pick % len(serials)]
        entry = self.shard.witness.model.tickets.get(serial)
        fence = 1 if entry is None else max(1, entry.fence - back)
        value = None if size is None else b"%03d" % (pick % 1_000) * size
        note = ProgressNote(pick % 100, 100.0, "rows", self.shard.now_ms) if tells else None
        self.shard.ask(Bookmark(serial, fence, value, note), size=3 * (size or 0))
        self._work(steps)

    @precondition(lambda self: self.shard.handlers.alive)
    @rule(pick=picks, steps=work)
    def load(self, pick: int, steps: list[str]) -> None:
        serials = [*self.shard.handlers.alive]
        self.shard.ask(BookmarkOf(serials[pick % len(serials)]))
        self._work(steps)

    # ------------------------------------------------------------------ time and steps

    @rule(steps=work)
    def go_on(self, steps: list[str]) -> None:
        self._work(steps)

    def _work(self, steps: list[str]) -> None:
        for step in steps:
            self.shard.step(step)
            self.shard.check()

    @rule(span=spans, steps=work)
    def pass_time(self, span: int, steps: list[str]) -> None:
        self.shard.pass_ms(span)
        self._work(steps)

    @rule(wall=st.sampled_from((-1, -300, -1_100, -6_000, -DAY_MS, 7_200_000)), steps=work)
    def set_the_clock(self, wall: int, steps: list[str]) -> None:
        self.shard.pass_ms(wall, 1)
        self._work(steps)

    @rule(steps=work)
    def want_a_checkpoint(self, steps: list[str]) -> None:
        self.shard.want_checkpoint()
        self._work(steps)

    @rule(span=st.sampled_from((0, 501, 1_001)), times=st.integers(1, 3))
    def have_reads_overtaken(self, span: int, times: int) -> None:
        """What is read while a commit is under way arrives after its completion."""
        for _ in range(times):
            self.shard.want_checkpoint()
            self._work(["pass", "io", "pass", "turn", "turn", "turn"])
            self.shard.pass_ms(span)
            self._work(["turn", "io", "io", "io", "writer", "hear writer", "turn"])
        self._work(["hear io", "hear io", "hear io"])

    @precondition(lambda self: self.shard.shard.is_open)
    @rule()
    def come_to_rest(self) -> None:
        self.shard.run()

    # ------------------------------------------------------------------ faults

    @rule(how=st.sampled_from(("before", "after", "short")), steps=work)
    def fail_an_append(self, how: str, steps: list[str]) -> None:
        self.shard.fail_append(how)
        self._work(steps)

    @rule(times=st.integers(1, 3))
    def fill_the_disk(self, times: int) -> None:
        self.shard.fill_disk(times)

    @rule(
        point=st.sampled_from(("begin", "tickets", "agenda", "before_commit", "after")),
        is_full=st.booleans(),
        steps=work,
    )
    def fail_a_commit(self, point: str, is_full: bool, steps: list[str]) -> None:
        self.shard.fail_commit(point, 28 if is_full else 5)
        self._work(steps)

    @rule(
        how=st.sampled_from(("killed", "killed", "lost", "landed", "torn")),
        seed=st.integers(0, 1_000),
        again=st.sampled_from((0, 0, 0, 5, 20, 40)),
        steps=work,
    )
    def crash(self, how: Any, seed: int, again: int, steps: list[str]) -> None:
        if how == "killed":
            self.shard.kill()
        else:
            self.shard.crash(how, seed, again)
        self._work(steps)

    @rule(calls=st.integers(1, 12), steps=work)
    def cut_the_power_soon(self, calls: int, steps: list[str]) -> None:
        self.shard.disk.cut_at(self.shard.disk.number + calls)
        self._work(steps)

    # ------------------------------------------------------------------ what holds

    @invariant()
    def everything_holds(self) -> None:
        self.shard.check()

    def teardown(self) -> None:
        try:
            if hasattr(self, "shard"):
                self.shard.finish()
        finally:
            self.stack.close()

    # ------------------------------------------------------------------ choosing

    def _in_state(self, state: int) -> bool:
        return any(entry.state == state for entry in self.shard.witness.model.tickets.values())

    def _any(self, pick: int, state: int | None = None) -> int:
        """A ticket of the model, or a serial that was never given out."""
        entries = self.shard.witness.model.tickets.items()
        serials = [serial for serial, entry in entries if state in (None, entry.state)]
        return serials[pick % len(serials)] if serials else 1


TestLiveEqualsReplay = LiveEqualsReplay.TestCase
# An example is cheap: two for each that others get.
TestLiveEqualsReplay.settings = settings(max_examples=2 * settings().max_examples)
