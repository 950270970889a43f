"""Hand-overs, decided: what comes out of another shard's outbox, and what has arrived there.

Entries come in order, and perhaps more than once; what is not past the last one taken is passed
over (docs/architecture.md, Outbox). Changes nothing.
"""

from parkade.shard.claims import Claims
from parkade.shard.commands import (
    CONFLICT_REPLACE,
    CONFLICT_RETURN,
    Answer,
    Deliver,
    Hand,
    UniqueRow,
    Verdict,
)
from parkade.shard.memory import UNREAD
from parkade.shard.outbox import Outbox, Place
from parkade.shard.unique import HELD
from parkade.shard.view import View
from parkade.store.record import Delivered, Handed, Submitted

__all__ = ["decide_deliver", "decide_hand"]


def decide_deliver(
    view: View, outbox: Outbox, command: Deliver, now_ms: int, settled_ms: int
) -> Verdict:
    taken = outbox.taken.get(command.sender)
    claims = Claims(view, now_ms, settled_ms, may_replace=True)
    for place, draft in command.entries:
        if taken is not None and place <= taken:
            continue
        holder = None
        if draft.unique is not None:
            conflict = CONFLICT_REPLACE if draft.unique.replaces else CONFLICT_RETURN
            known = claims.holder(draft, conflict)
            if known is UNREAD:
                continue
            holder = known
        if holder is None:
            claims.note(draft)
            answer = Answer("created", draft.serial, draft.part)
            view.accept(Delivered(command.sender, *place, draft), answer)
        else:
            _answer_for(view, claims, command.sender, place, draft, holder)
    return view.verdict()


def _answer_for(
    view: View, claims: Claims, sender: int, place: Place, draft: Submitted, holder: UniqueRow
) -> None:
    """The child is not made: its id answers as the holder's, for as long as that has the name."""
    if holder.until_ms == HELD and holder.serial not in claims.made:
        view.ticket(holder.serial)  # it will say when that ends, so it must be in memory
    record = Delivered(
        sender, *place, None, draft.serial, holder.serial, holder.part, holder.until_ms
    )
    view.accept(record, Answer("existing", holder.serial, holder.part))


def decide_hand(view: View, outbox: Outbox, command: Hand) -> Verdict:
    place = Place(*command.place)
    if place > outbox.handed.get(command.receiver, Place(0, 0, 0)):
        view.accept(Handed(command.receiver, *place), Answer("handed"))
    return view.verdict()
