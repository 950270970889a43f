"""Due tickets that wait outside of their lane's window as they were submitted.

A plain submit that is due, of a lane that has tickets outside already, would be made a ticket, wait
for its row in `lanes`, and leave memory when it has it. So what was submitted stands for it
(`Memory`, `plain`), and the lane knows its rank like those of all that is outside. It becomes a
ticket when somebody looks at it, or when the window takes it in.
docs/architecture.md, Lanes, rule 8.
"""

from collections.abc import Sequence
from typing import Final

from parkade.shard.crowd import seat_behind
from parkade.shard.generation import Generation
from parkade.shard.lanes import RANK_MAX, SERIAL_BITS, SERIAL_MASK, SPILLED, Lane, Lanes
from parkade.shard.ticket import Ticket
from parkade.store.record import Submitted

__all__ = ["SEATED_TOGETHER_MIN", "completed", "line_up", "seat_first", "seat_lined", "take_seat"]

SEATED_TOGETHER_MIN: Final = 4
"""Fewer are seated one by one, which costs no more."""


def line_up(lanes: Lanes, task: str, drafts: Sequence[Submitted]) -> Sequence[Submitted]:
    """Takes in what was submitted of one task without key, unique and options, and is due. Gives
    back those who are not past the edge of their lane: they are tickets at once."""
    lane = lanes.by_key.get((task, None, 0))
    if lane is None or lane.edge == RANK_MAX:
        return drafts
    edge, within = lane.edge, list[Submitted]()
    serials = [draft.serial for draft in drafts]
    ranks = [
        draft.due_ms << SERIAL_BITS | serial for draft, serial in zip(drafts, serials, strict=True)
    ]
    if min(ranks) <= edge:
        within = [draft for draft, rank in zip(drafts, ranks, strict=True) if rank <= edge]
        drafts = [draft for draft, rank in zip(drafts, ranks, strict=True) if rank > edge]
        ranks = [rank for rank in ranks if rank > edge]
        serials = [draft.serial for draft in drafts]
    if drafts:
        lanes.memory.create_lined(task, serials, drafts)
        lane.put_all_outside(serials, ranks)
        lanes.note_hunger(lane)
    return within


def seat_first(lanes: Lanes, task: str, drafts: Sequence[Submitted]) -> Sequence[Submitted]:
    """Seats those of `line_up` in the window of their lane, if all of it is there, and has room;
    gives back the rest. The first ranks are seated, as if they had entered one after the other."""
    lane, bounds = lanes.lane((task, None, 0)), lanes.bounds
    if lane.edge < RANK_MAX or lane.loading or len(lanes.by_key) > bounds.lanes_max:
        return drafts
    room = bounds.window_max - len(lane.window)
    if room <= 0 or lanes.total + min(room, len(drafts)) > bounds.windows_max:
        return drafts
    ranks = [draft.due_ms << SERIAL_BITS | draft.serial for draft in drafts]
    if ranks[0] < lane.top() or ranks != sorted(ranks):
        return drafts
    seated, rest = drafts[:room], drafts[room:]
    lanes.memory.create_all(seated)
    seat_behind(lanes, lane, ranks[:room])
    if rest:
        lane.edge = ranks[room] - 1
    return rest


def seat_lined(lanes: Lanes, lane: Lane, before: int, most: int) -> int:
    """Seats the first outside of a lane in its window, at most so many and up to a rank, as far as
    they were lined up since the cut; how many."""
    lined = lanes.memory.dirty.lined.get(lane.key[0])
    if not lined:
        return 0
    ranks = lane.take_outside(before, most, lined)
    if ranks:
        lanes.memory.unpack_lined(lane.key[0], [rank & SERIAL_MASK for rank in ranks])
        seat_behind(lanes, lane, ranks)
    return len(ranks)


def take_seat(lanes: Lanes, ticket: Ticket) -> bool:
    """Whether a ticket that is one from now on was lined up; then it has its seat."""
    lane = lanes.by_key.get(ticket.lane)
    if lane is None or ticket.serial not in lane.ranks:
        return False
    lanes.seats[ticket.serial] = SPILLED
    return True


def completed(lanes: Lanes, flight: Generation) -> None:
    """The store has the rows of those that were lined up. What became a ticket since then is one
    among others, and looked at like them."""
    for task, serials in flight.lined.items():
        left = serials - flight.unpacked.keys() if flight.unpacked else serials
        if not left:
            continue  # nor has it a lane, perhaps: all of them may have started
        ranks = lanes.by_key[task, None, 0].ranks
        for serial in left:
            del ranks[serial]
