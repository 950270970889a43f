"""What one checkpoint writes: the tickets and rows that changed between two cuts."""

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from parkade.shard.commands import UniqueRow
from parkade.shard.history import AttemptRow
from parkade.shard.ticket import Ticket
from parkade.store.record import Submitted

if TYPE_CHECKING:
    from parkade.shard.outbox import Place

__all__ = ["MOVE_BYTES", "NEVER_MS", "Cut", "Generation", "LaneMove"]

NEVER_MS: Final = 1 << 62
MOVE_BYTES: Final = 200  # what a move takes in memory, about


class LaneMove(msgspec.Struct, frozen=True, gc=False):
    """A ticket whose entry becomes a row of `lanes`, or of `waits`; its head stays as it is. `key`:
    its key, if that is known; without it its entry is in the agenda."""

    due_ms: int
    first_due_ms: int
    lane_number: int
    key: str | None = None
    to_waits: bool = False


class Generation:
    """Changes by key. While it is the flight, nothing in it is changed, its tickets included.

    tickets     serial -> its version; None: delete head, body, history and entry
    plain       serial -> what was submitted: a ticket that nobody has looked at since
    lined       task -> the serials of `plain` that are due, and outside of their lane's window
    unpacked    serial -> of the flight, those of `plain` that became tickets in memory since
    gone        serial -> the last version of a ticket that is None in `tickets`
    bodies      serial -> payload, or result of a ticket that is done; None: delete
    bookmarks   serial -> what an attempt saved; None: delete
    uniques     name -> row; None: delete
    history     (serial, fence) -> row
    moves       serial -> move; never of a ticket in `tickets`
    lane_names  (number, encoded lane) given out for the first time; None: given up
    outbox      receiver -> place -> entry, in order
    handed      receiver -> place: the store's entries up to there are to be deleted
    size_bytes  an estimate of what it holds in memory
    """

    __slots__ = (
        "bodies",
        "bookmarks",
        "gone",
        "handed",
        "history",
        "lane_names",
        "lined",
        "lined_unpacked",
        "moves",
        "outbox",
        "plain",
        "plain_due_ms",
        "size_bytes",
        "tickets",
        "uniques",
        "unpacked",
    )

    def __init__(self) -> None:
        self.tickets: dict[int, Ticket | None] = {}
        self.plain: dict[int, Submitted] = {}
        self.plain_due_ms = NEVER_MS  # none of them is due before, but for `lined`
        self.lined: dict[str, set[int]] = {}
        self.lined_unpacked = 0  # how many of them are in `unpacked`
        self.unpacked: dict[int, Ticket] = {}
        self.gone: dict[int, Ticket] = {}
        self.bodies: dict[int, bytes | None] = {}
        self.bookmarks: dict[int, bytes | None] = {}
        self.uniques: dict[bytes, UniqueRow | None] = {}
        self.history: dict[tuple[int, int], AttemptRow] = {}
        self.moves: dict[int, LaneMove] = {}
        self.lane_names: list[tuple[int, bytes | None]] = []
        self.outbox: dict[int, dict[Place, Submitted]] = {}
        self.handed: dict[int, Place] = {}
        self.size_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether a checkpoint of it would write nothing but its LSN."""
        return not (
            self.tickets or self.plain or self.uniques or self.history or self.moves or self.bodies
            or self.bookmarks or self.outbox or self.handed
        )  # fmt: skip

    @property
    def count(self) -> int:
        """How many tickets it changes."""
        return len(self.tickets) + len(self.plain)

    @property
    def lined_count(self) -> int:
        """How many are lined up and no tickets in memory yet."""
        return sum(map(len, self.lined.values())) - self.lined_unpacked

    def is_lined(self, task: str, serial: int) -> bool:
        """Whether it was lined up as it was submitted."""
        return serial in self.lined.get(task, ())

    def settle_unpacked(self) -> None:
        """Nothing is encoded any more: those that became tickets are tickets like others."""
        for serial, ticket in self.unpacked.items():
            self.tickets[serial] = ticket
            self.bodies[serial] = self.plain.pop(serial).payload
        if self.lined_unpacked:
            for serials in self.lined.values():
                serials.difference_update(self.unpacked)
        self.unpacked, self.lined_unpacked = {}, 0

    def hand(self, receiver: int, place: "Place") -> None:
        """The entries for a receiver are done with, up to that place."""
        self.handed[receiver] = place
        entries = self.outbox.get(receiver)
        if entries is not None:
            self.outbox[receiver] = left = {at: e for at, e in entries.items() if at > place}
            if not left:
                del self.outbox[receiver]

    def forget_history(self, serial: int, fence: int) -> None:
        """Let go of a deleted ticket's rows, whose fences end at `fence`."""
        history = self.history
        if fence <= len(history):
            for number in range(1, fence + 1):
                history.pop((serial, number), None)
        else:
            for place in [place for place in history if place[0] == serial]:
                del history[place]

    def under(self, newer: "Generation") -> "Generation":
        """One generation that holds both, where `newer` wins."""
        self.settle_unpacked()
        both = Generation()
        both.plain = self.plain | newer.plain
        both.lined = {task: set(serials) for task, serials in self.lined.items()}
        for task, serials in newer.lined.items():
            both.lined[task] = both.lined.get(task, set()) | serials
        both.plain_due_ms = min(self.plain_due_ms, newer.plain_due_ms)
        both.tickets = self.tickets | newer.tickets
        both.gone = self.gone | newer.gone
        both.bodies = self.bodies | newer.bodies
        both.bookmarks = self.bookmarks | newer.bookmarks
        both.uniques = self.uniques | newer.uniques
        both.history = self.history | newer.history
        for serial, ticket in newer.gone.items():
            both.bodies.pop(serial, None)
            both.bookmarks.pop(serial, None)
            both.forget_history(serial, ticket.fence)
        both.moves = {s: move for s, move in self.moves.items() if s not in newer.tickets}
        both.moves |= newer.moves
        both.lane_names = self.lane_names + newer.lane_names
        both.outbox = {receiver: dict(entries) for receiver, entries in self.outbox.items()}
        both.handed = dict(self.handed)
        for receiver, place in newer.handed.items():
            both.hand(receiver, place)
        for receiver, entries in newer.outbox.items():
            both.outbox.setdefault(receiver, {}).update(entries)
        both.size_bytes = self.size_bytes + newer.size_bytes
        return both


class Cut(NamedTuple):
    """The state that a checkpoint makes durable: an LSN, the counters there, up to where other
    outboxes were taken, how many tickets were done and are forgotten, and the changes."""

    lsn: int
    counters: dict[tuple[str, int], int]
    flight: Generation
    taken: "dict[int, Place]"
    done_forgotten: int = 0
