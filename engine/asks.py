"""What a shard is asked: a command or an inquiry, and where the answer goes."""

from collections.abc import Callable
from typing import Any

import msgspec

from parkade.shard.commands import Command, Settle, StartAlike
from parkade.shard.ticket import Ticket
from parkade.waiters import Waiter, Wakeups

__all__ = [
    "Ask",
    "AwaitEnd",
    "BookmarkOf",
    "Explain",
    "GroupEnds",
    "GroupsOf",
    "Inquiry",
    "Look",
    "PageOf",
    "Rehearse",
    "Seen",
    "ShardGroups",
    "ShardPage",
    "StopWaiting",
    "Watch",
    "Watched",
]


class Inquiry(msgspec.Struct, frozen=True, gc=False):
    """Base of what is asked without changing anything."""


class Look(Inquiry, frozen=True):
    """A ticket as it stands: answered by `Seen`, or None when there is none."""

    serial: int
    wants_body: bool = False
    wants_history: bool = False


class Explain(Look, frozen=True):
    """Why a ticket is not running: answered by `Facts`, or None when there is none."""


class Watch(Look, frozen=True):
    """A ticket as it stands, for somebody who is told of what follows: answered by `Watched`."""


class AwaitEnd(Inquiry, frozen=True):
    """Like `Look` with the body, answered when the ticket has ended (or is gone)."""

    serial: int


class BookmarkOf(Inquiry, frozen=True):
    """What an attempt of a running ticket saved: answered by its bytes, or None."""

    serial: int


class StopWaiting(Inquiry, frozen=True):
    """Somebody who asked `AwaitEnd` has gone: not answered, and what waits for nobody is let go."""

    serial: int


class PageOf(Inquiry, frozen=True):
    """Tickets of one shard, newest first, with serials below `before`.

    `indexes` are alternatives, each of them prefixes that together list every ticket asked for: the
    shortest is walked (without any: all tickets), not below the serial `floor`. The rest says what
    a ticket must be; spans of time begin with their `from` and end before their `to`, and what
    `is_unended` is pending or running.
    """

    indexes: tuple[tuple[bytes, ...], ...]
    before: int
    limit: int
    state: int | None = None
    task: str | None = None
    key: str | None = None
    why: str | None = None
    error_type: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    group: bytes | None = None
    ended_from_ms: int | None = None
    ended_to_ms: int | None = None
    target: str | None = None
    tag: tuple[str, str] | None = None
    created_from_ms: int | None = None
    is_unended: bool = False
    floor: int = 0


class GroupsOf(Inquiry, frozen=True):
    """Groups of dead tickets, in the order of their names from past `after`: answered by
    `ShardGroups`."""

    after: bytes
    limit: int


class GroupEnds(Inquiry, frozen=True):
    """Of each group the dead tickets that were submitted first and last: answered by a list of
    tickets by group, empty where none is left."""

    groups: list[bytes]


class Rehearse(Inquiry, frozen=True):
    """What a command would be answered, if it were given now: nothing comes of it."""

    command: Command


class Seen(msgspec.Struct, frozen=True):
    """A copy of a ticket that nobody else changes, its body and the rows of its history."""

    ticket: Ticket
    body: bytes | None = None
    rows: list[Any] | None = None


class Watched(msgspec.Struct, frozen=True):
    """`seen` (None: there is no such ticket), and how many notes its shard had made by then: what
    they tell of is in it."""

    seen: Seen | None
    noted: int


class ShardPage(msgspec.Struct, frozen=True):
    """One shard's part of a page; `last` is where to go on, None when there is no more."""

    tickets: list[Ticket]
    scanned: int
    last: int | None


class ShardGroups(msgspec.Struct, frozen=True):
    """How many dead tickets each group has; `last` is where to go on, None when there is no
    more."""

    counts: dict[bytes, int]
    last: bytes | None


class Ask:
    """One thing asked of one shard. The answer goes to `slot` of a waiter, or to `then`."""

    __slots__ = (
        "asked", "births_bytes", "door_bytes", "due_count", "has_waited", "size", "slot", "stirs",
        "then", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        asked: Command | Inquiry,
        *,
        waiter: Waiter | None = None,
        slot: int = 0,
        then: Callable[[Any, BaseException | None], None] | None = None,
        size: int = 0,
        door_bytes: int = 0,
        due_count: int = 0,
    ) -> None:
        self.asked = asked
        self.waiter = waiter
        self.slot = slot
        self.then = then
        self.size = size  # bytes that it may write, about
        self.births_bytes = 0  # how many of them for what it brings forth
        self.door_bytes = door_bytes  # held against the door's bound until it is decided
        self.due_count = due_count  # tickets that were let in as due
        self.has_waited = False  # for what was on its way to the shard
        # Whether a turn of the shard is to follow the answer. Who hears of a start, or of ends,
        # sees to it where one must.
        self.stirs = then is not None and type(asked) not in (Settle, StartAlike)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.waiter is not None and self.waiter.is_abandoned

    def answer(self, value: Any, wakeups: Wakeups) -> None:
        if self.waiter is not None:
            self.waiter.answer(self.slot, value, wakeups)
        if self.then is not None:
            self.then(value, None)

    def fail(self, error: BaseException, wakeups: Wakeups) -> None:
        if self.waiter is not None:
            self.waiter.fail(self.slot, error, wakeups)
        if self.then is not None:
            self.then(None, error)
