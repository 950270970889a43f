"""What stands around a stepped shard: a host that shows what it decides, and handlers at rest."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kit.witness import StoreImage, Witness, fields_of
from parkade.asks import Ask, Inquiry, PageOf
from parkade.policies import RetryPolicy
from parkade.shard.commands import Command, Loaded, Verdict
from parkade.shard.ticket import Ticket
from parkade.shard_host import ShardHost

__all__ = ["Failed", "Handlers", "Job", "Watched"]

RETRY = RetryPolicy(None, backoff=["300ms"])


class Failed(Exception):
    """What a shard answers with when it cannot answer."""


class Job(NamedTuple):
    """An attempt that a handler makes."""

    serial: int
    fence: int
    payload: bytes


class Watched(ShardHost):
    """A shard's host with a witness at its side."""

    witness: Witness
    image_of: Callable[[], StoreImage]
    held_at: dict[int, int]  # the LSN that an answer rests on, by the id of its ask
    _asked: Command | Inquiry | None = None

    def decide(self, ask: Ask, loaded: Loaded | None = None) -> None:
        before, self._asked = self._asked, ask.asked
        super().decide(ask, loaded)
        self._asked = before

    def _apply(self, verdict: Verdict, loaded: Loaded | None, size: int) -> None:
        command = self._asked
        assert isinstance(command, Command)
        times = self.host.now_ms, self.host.settled_ms
        self.witness.decided(command, verdict, times, self.core.has_room)
        super()._apply(verdict, loaded, size)
        if verdict.records and self.is_open:
            self.witness.applied(self.core, verdict.records, self.image_of())

    def hold(self, ask: Ask, value: Any) -> None:
        if isinstance(ask.asked, PageOf):
            try:
                self._check_page(ask.asked, value)
            except AssertionError as error:
                self.host.report("a page", error)
        self.held_at[id(ask)] = self.core.lsn
        super().hold(ask, value)

    def _release(self, ask: Ask, value: Any) -> None:
        self.witness.tell(self.held_at.pop(id(ask)))
        super()._release(ask, value)

    def _check_page(self, asked: PageOf, page: Any) -> None:
        place = {name: at for at, name in enumerate(Ticket.__struct_fields__)}
        wanted = [
            serial
            for serial, shadow in sorted(self.witness.tickets.items(), reverse=True)
            if serial < asked.before
            and asked.state in (None, shadow.head[place["state"]])
            and asked.task in (None, shadow.head[place["task"]])
            and asked.key in (None, shadow.head[place["key"]])
        ]
        lowest = 0 if page.last is None else page.last
        expected = [serial for serial in wanted if serial >= lowest][: asked.limit]
        assert [ticket.serial for ticket in page.tickets] == expected, (asked, expected, page)
        for ticket in page.tickets:
            assert fields_of(ticket) == self.witness.tickets[ticket.serial].head


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

    def start(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            entry = self.witness.model.tickets[job.serial]
            assert job.serial not in self.alive, ("two attempts of one ticket", job)
            assert (entry.state, entry.fence) == (1, job.fence), ("runs", job, entry)
            assert entry.body == job.payload, ("with its payload", job, entry)
            self.alive[job.serial] = job
