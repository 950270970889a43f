"""What may be asked of a shard, and how it answers. Commands are imperatives, frozen.

`Shard.decide` turns a command into records, refusals, or the wish to see more of the store.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import msgspec

from parkade.shard.ticket import StoredAt, Ticket
from parkade.store.record import ErrorText, ProgressNote, Record, Submitted

if TYPE_CHECKING:
    from parkade.shard.outbox import Place

__all__ = [
    "CONFLICT_ERROR",
    "CONFLICT_REPLACE",
    "CONFLICT_RETURN",
    "AllCreated",
    "AllSettled",
    "AllStarted",
    "Answer",
    "Bookmark",
    "Cancel",
    "CancelMany",
    "Command",
    "Deliver",
    "Drop",
    "Expire",
    "Forget",
    "Hand",
    "Loaded",
    "LostItem",
    "Need",
    "Outcome",
    "Parked",
    "Refusal",
    "Reschedule",
    "Resolve",
    "Revive",
    "Settle",
    "SettleLost",
    "Start",
    "StartAlike",
    "StartItem",
    "Submit",
    "UniqueRow",
    "Verdict",
]

CONFLICT_RETURN, CONFLICT_ERROR, CONFLICT_REPLACE = 0, 1, 2


T = TypeVar("T")


class _Plain(msgspec.Struct, frozen=True, gc=False):
    """Base of what travels between a caller, the host and a shard."""


class Command(_Plain, frozen=True):
    """Base of all commands."""


class Submit(Command, frozen=True):
    """Up to 1,000 drafts, decided in order; one answer each."""

    drafts: list[Submitted]
    on_conflict: list[int] | None = None  # per draft; None: CONFLICT_RETURN for all


class Cancel(Command, frozen=True):
    serial: int
    reason: str = ""


class CancelMany(Command, frozen=True):
    """Like `Cancel` for each of these, in order; one answer each. Like a submit it is refused where
    the disk is full: it must not use up what is kept for outcomes."""

    serials: list[int]
    reason: str = ""


class Reschedule(Command, frozen=True):
    serial: int
    due_ms: int


class Revive(Command, frozen=True):
    serials: list[int]
    due_ms: int
    keep_attempts: bool = False
    payload: bytes | None = None
    accept_ambiguous: bool = False
    dues_ms: list[int] | None = None  # of each serial, in place of `due_ms`


class Drop(Command, frozen=True):
    serials: list[int]


class Resolve(Command, frozen=True):
    serial: int
    result: bytes
    note: str = ""


class Deliver(Command, frozen=True):
    """Entries of another shard's outbox, in order, each with its place there."""

    sender: int
    entries: "list[tuple[Place, Submitted]]"


class Hand(Command, frozen=True):
    """The entries of this outbox for a receiver have arrived, up to that place."""

    receiver: int
    place: "Place"


class StartItem(_Plain, frozen=True):
    """A ticket whose place is in hand, with what its task's policy says today."""

    serial: int
    max_attempts: int | None = None
    max_elapsed_ms: int | None = None
    on_crash: int = 0
    is_outlived: bool = False  # an older attempt still runs: it may end, and not start


class Start(Command, frozen=True):
    """Start those that may. At most one suspect is among them, and only when it is allowed: when
    none runs in any shard."""

    items: list[StartItem]
    allows_suspect: bool = True


class StartAlike(Command, frozen=True):
    """`Start` of tickets of which the code says the same: none brings options, and none is said to
    be outlived."""

    serials: list[int]
    max_attempts: int | None = None
    on_crash: int = 0


class Expire(Command, frozen=True):
    """End those of these that have waited past their `expires` and never started."""

    serials: list[int]


class Outcome(_Plain, frozen=True):
    """How an attempt ended. `kind`: done, transient, failed, unsafe, ambiguous, snooze, drop,
    cancelled, timeout, lease, lost, bad_payload, released, result_lost (docs/semantics.md)."""

    serial: int
    fence: int
    kind: str
    result: bytes = b""
    error: ErrorText | None = None
    wait_ms: int = 0
    max_attempts: int | None = None
    max_elapsed_ms: int | None = None
    max_snoozes: int = 1000
    has_begun: bool = True
    reason: str = ""
    born: list[Submitted] | None = None
    strikes: bool = False  # a breaker counts it as a failure of the target
    lives_on: bool = False  # its handler still runs: what it has in hand is not free yet


class Settle(Command, frozen=True):
    outcomes: list[Outcome]


class Bookmark(Command, frozen=True):
    """A running attempt saves a value for the next one, or tells how far it is; None: as it was."""

    serial: int
    fence: int
    value: bytes | None = None
    progress: ProgressNote | None = None


class LostItem(_Plain, frozen=True):
    """An attempt whose process died; `is_alone`: it was the only suspect running in any shard."""

    serial: int
    fence: int
    wait_ms: int
    max_attempts: int | None = None
    is_alone: bool = False


class SettleLost(Command, frozen=True):
    items: list[LostItem]


class Forget(Command, frozen=True):
    """Retention: those of these ended tickets, of one task and state, that ended before a time;
    None: whenever they did."""

    task: str
    state: int
    serials: list[int]
    before_ms: int | None = None


class UniqueRow(_Plain, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who holds a dedupe key: `until_ms` is -1 while an unfinished or dead ticket holds it."""

    serial: int
    part: int
    until_ms: int
    mode: int = 0
    keep_ms: int = 0


class Parked(_Plain, frozen=True):
    """A ticket as it was read from the store."""

    ticket: Ticket
    stored_at: StoredAt
    body: bytes | None = None


class Loaded(_Plain, frozen=True):
    """What was read from the store, and the number of the commit that its snapshot saw."""

    snapshot_commit: int
    tickets: dict[int, Parked | None]
    uniques: dict[bytes, UniqueRow | None]


class Need(_Plain, frozen=True):
    """What `decide` must see of the store before it can answer."""

    serials: list[int]
    uniques: list[bytes]


class Refusal(_Plain, frozen=True):
    """Why not. `code`: full, unknown, duplicate, too_late, not_pending, not_dead, ambiguous,
    refused (stale fence), not_due, expired, late, exhausted, outlived (an older attempt still
    runs), key_busy, suspect (another one runs),
    clock (expired or late by the wall clock only), gone, not_ended, other (task or
    state), kept (it ended later)."""

    code: str
    serial: int = 0
    part: int = 0
    until_ms: int = -1


class Answer(_Plain, frozen=True):
    """Yes. `code`: created, existing, cancelled, requested, started, settled, revived, ..."""

    code: str
    serial: int = 0
    part: int = 0
    fence: int = 0


class _All(Sequence[Answer], Generic[T]):
    """The answers to things that were all done, in their order: each is made when somebody looks at
    it. Who is told of a thousand looks at none."""

    __slots__ = ("of",)

    def __init__(self, of: Sequence[T]) -> None:
        self.of = of

    @staticmethod
    def _answer(one: T) -> Answer:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.of)

    def __iter__(self) -> Iterator[Answer]:
        return map(self._answer, self.of)

    @overload
    def __getitem__(self, place: int) -> Answer: ...
    @overload
    def __getitem__(self, place: slice) -> list[Answer]: ...
    def __getitem__(self, place: int | slice) -> Answer | list[Answer]:
        if isinstance(place, slice):
            return [self._answer(one) for one in self.of[place]]
        return self._answer(self.of[place])


class AllCreated(_All[Submitted]):
    """Of drafts: all of them became tickets."""

    __slots__ = ()

    @staticmethod
    def _answer(one: Submitted) -> Answer:
        return Answer("created", one.serial, one.part)


class AllStarted(_All[tuple[int, int, int]]):
    """Of starts, each by serial, part and fence: all of them were made."""

    __slots__ = ()

    @staticmethod
    def _answer(one: tuple[int, int, int]) -> Answer:
        return Answer("started", *one)


class AllSettled(_All[tuple[int, int, int]]):
    """Of attempts that returned, each by serial, part and fence: all of them were the latest."""

    __slots__ = ()

    @staticmethod
    def _answer(one: tuple[int, int, int]) -> Answer:
        return Answer("settled", *one)


class Verdict(_Plain, frozen=True):
    """The records to apply, in order, and one answer per thing asked; or only `need`."""

    records: list[Record]
    answers: Sequence[Answer | Refusal]
    need: Need | None = None
