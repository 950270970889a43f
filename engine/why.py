"""Why a ticket is not running, in one sentence, and what would change that.

The core thread gathers the facts (`Facts`) when it looks at the ticket; the words are made where
they are read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from parkade.durations import datetime_of
from parkade.guards import Hold
from parkade.held_by import about, ahead, holds
from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED, PENDING, RUNNING
from parkade.shard.ticket import Ticket, format_id
from parkade.showing import error_line, state_name
from parkade.views import Why
from parkade.wording import count_text, span_text

if TYPE_CHECKING:
    from parkade.attempts import Attempts
    from parkade.shard_host import ShardHost

__all__ = ["Facts", "Told", "explain", "gather", "held_text"]

_PLACES = {"thread": "threads", "loop": "places on the event loop", "process": "processes"}


class Told(NamedTuple):
    """What holds a ticket, and in how many words it is told: of breakers and pauses, why."""

    hold: Hold
    text: str = ""
    change_ms: int | None = None  # by the wall clock
    holder: tuple[int, int] | None = None  # serial and part of who has the key


class Facts(NamedTuple):
    """`where` is the ticket's place in its shard's memory; `ahead` how many of its task, target and
    priority go first, None when it is not in memory."""

    ticket: Ticket
    now_ms: int
    where: str = ""
    is_quarantined: bool = False
    runs_nothing: str = ""  # why this engine starts nothing at all
    held: Sequence[Told] = ()
    ahead: int | None = None


def gather(shard: "ShardHost", ticket: Ticket, attempts: "Attempts", mono_ms: int) -> Facts:
    """On the core thread, in a pass."""
    now_ms = shard.host.now_ms
    if ticket.state != PENDING or ticket.due_ms > now_ms:
        return Facts(ticket, now_ms)
    runs_nothing = attempts.runs_nothing
    if not runs_nothing and shard.room.is_full:
        runs_nothing = "no space is left on the disk to note its start"
    admission = attempts.admission
    held = [
        Told(
            hold,
            about(admission, hold),
            hold.wall_ms if hold.mono_ms is None else now_ms + hold.mono_ms - mono_ms,
            _holder(shard, hold),
        )
        for hold in holds(admission, shard.number, ticket, now_ms, mono_ms)
    ]
    if attempts.is_outlived(ticket.serial):
        held.insert(0, Told(Hold("attempt", "")))
    return Facts(
        ticket,
        now_ms,
        shard.placement.where(ticket.serial),
        ticket.serial in shard.quarantined,
        runs_nothing,
        held,
        ahead(admission, shard.number, ticket),
    )


def _holder(shard: "ShardHost", hold: Hold) -> tuple[int, int] | None:
    if hold.kind != "key":
        return None
    keys = shard.placement.lanes.keys
    for serial in (*keys.running.get(hold.name, ()), *keys.claims.get(hold.name, ())):
        ticket = shard.core.hot.get(serial)
        if ticket is not None:
            return ticket.serial, ticket.part
    return None


def explain(facts: Facts, salt: int) -> Why:
    """The sentence. `salt` is the directory's, for the ids of others."""
    ticket, now_ms = facts.ticket, facts.now_ms
    state = state_name(ticket, now_ms)
    if ticket.state == RUNNING:
        return Why(state, _running(facts), (), None)
    if ticket.state != PENDING:
        return Why(state, _ended(ticket, now_ms), (), None)
    if ticket.due_ms > now_ms:
        return Why(state, _scheduled(ticket, now_ms), (), datetime_of(ticket.due_ms))
    held, blockers, change_ms = _held(facts, salt)
    text = f"ready, held: {held}" if held else f"ready, {_next(facts)}"
    text += f". Due {span_text(now_ms - ticket.due_ms)} ago"
    if facts.ahead:
        text += f", {_ahead(facts.ahead)}"
    return Why(state, text, blockers, _datetime(change_ms))


def held_text(facts: Facts, salt: int) -> str | None:
    """What holds a ready ticket; None: nothing does, or it is not ready."""
    ticket = facts.ticket
    if ticket.state != PENDING or ticket.due_ms > facts.now_ms:
        return None
    return _held(facts, salt)[0] or None


def _running(facts: Facts) -> str:
    ticket = facts.ticket
    span, attempt = span_text(max(0, facts.now_ms - ticket.started_ms)), ticket.attempts
    text = f"running, attempt {attempt}, for {span}"
    if facts.runs_nothing:
        text = f"cut off in attempt {attempt}, which began {span} ago: {facts.runs_nothing}; "
        text += "the next open tells what becomes of it"
    if ticket.cancel_reason is not None:
        text += "; it was asked to stop" + (
            f": {ticket.cancel_reason}" * bool(ticket.cancel_reason)
        )
    return text


def _ended(ticket: Ticket, now_ms: int) -> str:
    ago = f"{span_text(max(0, now_ms - ticket.finished_ms))} ago"
    if ticket.state == DONE:
        return f"done {ago}" + (f": {ticket.why}" if ticket.why else "")
    if ticket.state == CANCELLED:
        return f"cancelled {ago}" + (f": {ticket.why}" if ticket.why else "")
    if ticket.state == EXPIRED:
        expires_ms = 0 if ticket.options is None else ticket.options.expires_ms or 0
        return f"expired {ago}: not started within {span_text(expires_ms)} of being due"
    assert ticket.state == DEAD, ticket.state
    tries = "1 attempt" if ticket.attempts == 1 else f"{ticket.attempts} attempts"
    error = "" if ticket.error is None else f": {error_line(ticket.error)}"
    doubt = "; it may have happened" if ticket.maybe_applied else ""
    return f"dead {ago} after {tries} ({ticket.why}){error}{doubt}"


def _scheduled(ticket: Ticket, now_ms: int) -> str:
    wait = span_text(ticket.due_ms - now_ms)
    if not ticket.fence:
        return f"due in {wait}"
    text = f"attempt {ticket.attempts + 1} in {wait}"
    if ticket.error is not None:
        text += f"; the last one ended with {error_line(ticket.error)}"
    elif ticket.snoozes:
        text += f"; snoozed {ticket.snoozes} times"
    return text


def _held(facts: Facts, salt: int) -> tuple[str, list[str], int | None]:
    """Words, blockers, and when that changes by itself; no words: nothing holds it."""
    if facts.is_quarantined:
        return "a row of it is damaged; see parkade verify --deep", ["damage"], None
    if facts.runs_nothing:
        return facts.runs_nothing, ["engine"], None
    words = [_words(told, facts.now_ms, salt) for told in facts.held]
    changes = [told.change_ms for told in facts.held]
    # All of them must have changed before it may start.
    known = [change for change in changes if change is not None]
    change_ms = max(known) if known and len(known) == len(changes) else None
    return "; ".join(words), [_blocker(told.hold) for told in facts.held], change_ms


def _next(facts: Facts) -> str:
    """Of a ticket that nothing holds."""
    if facts.ahead is None and facts.where != "in hand":
        return "being brought into memory, behind those that were due before"
    return "behind others of its lane" if facts.ahead else "about to start"


def _ahead(count: int) -> str:
    return "1 other goes first" if count == 1 else f"{count_text(count)} others go first"


def _blocker(hold: Hold) -> str:
    if hold.kind in ("limit", "pause"):
        return f"{hold.kind} {hold.name}"
    return f"{hold.kind}:{hold.name}" if hold.name else hold.kind


def _words(told: Told, now_ms: int, salt: int) -> str:
    hold = told.hold
    when = ""
    if told.change_ms is not None:
        when = f" in {span_text(max(0, told.change_ms - now_ms))}"
    match hold.kind:
        case "handler":
            return f'no task "{hold.name}" is registered'
        case "pause":
            why = f" ({told.text})" if told.text else ""
            until = f", until{when[3:]} from now" if when else ""
            return f"{hold.name} is paused{why}{until}"
        case "limit":
            return f"limit {hold.name} is reached" + (f", the next may start{when}" if when else "")
        case "breaker":
            why = f" ({told.text})" if told.text else ""
            probe = f", next probe{when}" if when else ""
            return f'breaker "{hold.name}" is open{why}{probe}'
        case "key":
            if told.holder is None:
                return f'its key "{hold.name}" is taken'
            return f"ticket {format_id(*told.holder, salt)} has its key"
        case "place" if not told.text:
            return "its task runs in a process, and this engine has none: Engine(processes=...)"
        case "place":
            return f"all {told.text} {_PLACES.get(hold.name, hold.name)} are in use"
        case "attempt":
            return "an older attempt still running in a thread that cannot be stopped"
        case "suspect":
            return (
                "it ran when the process died, and another such ticket runs now; "
                "they run one at a time"
            )
        case _:
            return (
                "by the wall clock its time is over, by the settled clock it is not; "
                "it waits for the two to agree"
            )


def _datetime(ms: int | None) -> datetime | None:
    return None if ms is None else datetime_of(ms)
