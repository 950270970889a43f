"""Due tickets that wait outside of their lane's window as they were submitted.

A plain submit that is due, of a lane that has tickets outside already, would be made a ticket, wait
for its row in `lanes`, and leave memory when it has it. So what was submitted stands for it
(`Memory`, `plain`), and the lane knows its rank like those of all that is outside. It becomes a
ticket when somebody looks at it, or when the window takes it in.
docs/architecture.md, Lanes, rule 8.
"""

from collections.abc import Sequence

from parkade.shard.generation import Generation
from parkade.shard.lanes import RANK_MAX, SERIAL_BITS, SPILLED, Lanes
from parkade.shard.ticket import Ticket
from parkade.store.record import Submitted

__all__ = ["completed", "line_up", "take_seat"]


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
