"""What stands around a stepped shard: a host that shows what it decides, and handlers at rest."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kit.witness import StoreImage, Witness, fields_of
from parkade.asks import Ask, GroupEnds, GroupsOf, Inquiry, PageOf, ShardGroups
from parkade.caller_frames import Line, Written
from parkade.opening import OpenShard
from parkade.policies import RetryPolicy
from parkade.progress import ProgressBoard
from parkade.shard.commands import Command, Loaded, Submit, Verdict
from parkade.shard.ticket import Ticket
from parkade.shard_host import ShardHost
from parkade.store.record import Options, Record, Submitted

__all__ = ["Failed", "Handlers", "Job", "Watched", "WatchedWritten"]

RETRY = RetryPolicy(None, backoff=["300ms"])


class Failed(Exception):
    """What a shard answers with when it cannot answer."""


class Job(NamedTuple):
    """An attempt that a handler makes."""

    serial: int
    fence: int
    payload: bytes


class WatchedWritten(Written):
    """Its witness hears of what a caller writes before the disk does."""

    def write(self, lines: list[Line], drafts: list[Submitted], body: bytes) -> None:
        shard = self._shard
        assert isinstance(shard, Watched)
        first_lsn = shard.journal.next_lsn
        for lsn, draft in enumerate(drafts, first_lsn):
            shard.witness.is_written(draft, lsn)
        super().write(lines, drafts, body)
        shard.witness.tell(first_lsn + len(drafts) - 1)

    @property
    def is_taken_in(self) -> bool:
        return not self._drafts and not self._is_begun


class Watched(ShardHost):
    """A shard's host with a witness at its side."""

    witness: Witness
    image_of: Callable[[], StoreImage]
    held_at: dict[int, int]  # the LSN that an answer rests on, by the id of its ask
    _asked: Command | Inquiry | None = None
    begun_at: dict[int, int]  # the LSN at which a page was begun, by the id of its ask
    _applied: list[Record] = []  # noqa: RUF012 -- replaced, never changed

    def install(self, opened: OpenShard) -> None:
        super().install(opened)
        self.written = WatchedWritten(self)

    def turn(self) -> None:
        self.witness.passes(self.host.settled_ms)
        super().turn()

    @property
    def is_taken_in(self) -> bool:
        """Whether memory has all that the disk may have of what callers wrote."""
        assert isinstance(self.written, WatchedWritten)
        return self.written.is_taken_in

    def decide(self, ask: Ask, loaded: Loaded | None = None) -> None:
        before, self._asked = self._asked, ask.asked
        if isinstance(ask.asked, PageOf):
            self.begun_at.setdefault(id(ask), self.core.lsn)
        super().decide(ask, loaded)
        self._asked = before

    def apply(self, verdict: Verdict, loaded: Loaded | None, size: int) -> None:
        command = self._asked
        if command is None:  # submits that were gathered
            command = Submit([one for one in verdict.records if isinstance(one, Submitted)])
        assert isinstance(command, Command)
        self._applied = verdict.records
        times = self.host.now_ms, self.host.settled_ms
        self.witness.decided(command, verdict, times, self.core.has_room)
        super().apply(verdict, loaded, size)
        if self._applied and self.is_open:
            self.witness.applied(self.core, self._applied, self.image_of())

    def _with_progress(self, board: ProgressBoard, records: list[Record]) -> list[Record]:
        self._applied = super()._with_progress(board, records)
        self.witness.told_along(self._applied[: len(self._applied) - len(records)])
        return self._applied

    def hold(self, ask: Ask, value: Any) -> None:
        try:
            if isinstance(ask.asked, PageOf):
                self._check_page(ask.asked, value, self.begun_at.pop(id(ask)))
            elif isinstance(ask.asked, GroupsOf):
                self._check_groups(ask.asked, value)
            elif isinstance(ask.asked, GroupEnds):
                self._check_ends(ask.asked, value)
        except AssertionError as error:
            self.host.report("a page", error)
        self.held_at[id(ask)] = self.core.lsn
        super().hold(ask, value)

    def hand_frame(self, *, is_here: bool = False) -> None:
        if self.has_frame:
            first_lsn = self.core.lsn - len(self.records) + 1
            assert self.journal.next_lsn == first_lsn, (
                "numbered otherwise",
                self.number,
                first_lsn,
            )
        super().hand_frame(is_here=is_here)

    def _release(self, ask: Ask, value: Any) -> None:
        self.witness.tell(self.held_at.pop(id(ask)))
        super()._release(ask, value)

    def _check_page(self, asked: PageOf, page: Any, began_lsn: int) -> None:
        """A page may be read in slices: what changed after it was begun may be in it or not."""
        place = {name: at for at, name in enumerate(Ticket.__struct_fields__)}
        wanted = [
            serial
            for serial, shadow in sorted(self.witness.tickets.items(), reverse=True)
            if serial < asked.before
            and asked.state in (None, shadow.head[place["state"]])
            and asked.task in (None, shadow.head[place["task"]])
            and asked.key in (None, shadow.head[place["key"]])
            and asked.group in (None, shadow.head[place["group"]])
            and (not asked.is_unended or shadow.head[place["state"]] in (0, 1))
            and _fits_options(asked, shadow.head[place["options"]])
        ]
        lowest = 0 if page.last is None else page.last
        got = [ticket.serial for ticket in page.tickets]
        assert got == sorted(set(got), reverse=True) and len(got) <= asked.limit, (asked, got)
        expected = [serial for serial in wanted if serial >= lowest]
        versions = self.witness.versions
        changed = {s for s in {*got, *expected} if versions[s][-1][0] > began_lsn}
        expected = [serial for serial in expected if serial not in changed]
        assert [serial for serial in got if serial not in changed] == expected, (asked, page)
        for ticket in page.tickets:
            if ticket.serial not in changed:
                assert fields_of(ticket) == self.witness.tickets[ticket.serial].head

    def _check_groups(self, asked: GroupsOf, got: ShardGroups) -> None:
        groups = sorted(group for group in self._dead_by_group() if group > asked.after)
        if got.last is not None:
            groups = [group for group in groups if group <= got.last]
        expected = {group: len(self._dead_by_group()[group]) for group in groups}
        assert got.counts == expected, (asked, got, expected)

    def _check_ends(self, asked: GroupEnds, got: dict[bytes, list[Ticket]]) -> None:
        by_group = self._dead_by_group()
        for group in asked.groups:
            serials = by_group.get(group, [])
            assert {t.serial for t in got[group]} == {*serials[:1], *serials[-1:]}, (got, serials)
            for ticket in got[group]:
                assert fields_of(ticket) == self.witness.tickets[ticket.serial].head

    def _dead_by_group(self) -> dict[bytes, list[int]]:
        """Serials in their order."""
        place = Ticket.__struct_fields__.index("group")
        by_group: dict[bytes, list[int]] = {}
        for serial, shadow in sorted(self.witness.tickets.items()):
            group = shadow.head[place]
            if group is not None:
                by_group.setdefault(group, []).append(serial)
        return by_group


def _fits_options(asked: PageOf, options: Options | None) -> bool:
    target = None if options is None else options.target
    tags = None if options is None or options.indexed is None else options.tags
    has_tag = asked.tag is None or asked.tag in (tags or {}).items()
    return asked.target in (None, target) and has_tag


class Handlers:
    """The tasks `t` and `u`, and what runs of them. An attempt runs until a test ends it."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.alive: dict[int, Job] = {}

    def kinds(self) -> dict[str, str]:
        return {"t": "thread", "u": "thread"}

    def policy_of(self, ticket: Ticket) -> RetryPolicy:
        return RETRY

    def on_crash_of(self, task: str) -> int:
        return int(task == "u")

    def job_of(self, ticket: Ticket, payload: bytes) -> Any:
        return Job(ticket.serial, ticket.fence, payload)

    def entropy(self) -> int:
        return 0

    def is_loop_closed(self) -> bool:
        return False

    def loop_lost(self) -> None:
        raise AssertionError("no loop was lost")

    def look(self, mono_ms: int) -> None:
        """No attempt runs out of time."""

    def wait_ms(self, mono_ms: int) -> int | None:
        return None

    def cancel(self, serial: int, fence: int, reason: str, *, is_for_good: bool = False) -> None:
        """Whether it stops is the test's choice."""

    def start(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            entry = self.witness.model.tickets[job.serial]
            assert job.serial not in self.alive, ("two attempts of one ticket", job)
            assert (entry.state, entry.fence) == (1, job.fence), ("runs", job, entry)
            assert entry.body == job.payload, ("with its payload", job, entry)
            self.alive[job.serial] = job
