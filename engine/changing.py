"""What the command line asks an engine to change, answered with plain values.

What is about many tickets does a few pages and says where it stands, so that no request takes long:
whoever asks goes on from there.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from parkade import steering
from parkade.asking import Request
from parkade.cancelling import Places, cancel_all, cancelling, everywhere
from parkade.errors import ConfigError, UnknownTicket
from parkade.facts import plain, time_of
from parkade.shard.commands import Cancel
from parkade.verdicts import reason_text

if TYPE_CHECKING:
    from parkade.desk import Desk
    from parkade.engine import Engine

__all__ = ["CHANGES", "plan_cancel"]

Args = Mapping[str, Any]
ROUNDS = 4  # pages of each shard in one request


def plan_cancel(desk: "Desk", args: Args) -> dict[str, Any]:
    """How many would be cancelled: `task`, `key`, `tag`, `place`."""
    return _cancel_some(desk, args, is_dry=True)


def _cancel_many(engine: "Engine", args: Args) -> dict[str, Any]:
    return _cancel_some(engine.desk("cancel"), args, is_dry=False)


def _cancel_some(desk: "Desk", args: Args, *, is_dry: bool) -> dict[str, Any]:
    """`place` is what the next request goes on with; None: all is done."""
    place: Mapping[str, str] | None = args.get("place")
    places: Places = everywhere(desk)
    if place is not None:
        places = {int(shard): int(before, 16) for shard, before in place.items()}
    tag = args.get("tag")
    flow = cancelling(
        desk,
        "cancel",
        task=args.get("task"),
        key=args.get("key"),
        tag=None if tag is None else cast("tuple[str, str]", tuple(tag)),
        reason=args.get("reason", ""),
        is_dry=is_dry,
        places=places,
        rounds_max=ROUNDS,
    )
    result = cancel_all(desk, flow)
    left = {str(shard): f"{before:x}" for shard, before in places.items()}
    return {**plain(result), "place": left or None}


def _cancel(engine: "Engine", args: Args) -> dict[str, Any]:
    """By ids, all of them together; for each what became of it."""
    desk, reason = engine.desk("cancel"), reason_text(str(args.get("reason", "")))
    outcomes: dict[str, str] = dict.fromkeys(cast("list[str]", args.get("ids") or []), "unknown")
    asks: dict[str, tuple[int, Cancel]] = {}
    for ticket_id in outcomes:
        try:
            known = desk.parse(ticket_id)
        except UnknownTicket:
            continue
        shard = known.part % desk.runtime.shard_count
        asks[ticket_id] = shard, Cancel(known.serial, reason)
    request: Request[list[Any]] = Request("cancel", "cancel", [*asks.values()], list)
    answers: list[Any] = desk.ask(request)
    for ticket_id, answered in zip(asks, answers, strict=True):
        outcomes[ticket_id] = answered[0].code
    return {"outcomes": outcomes}


def _reschedule(engine: "Engine", args: Args) -> dict[str, Any]:
    ticket_id, delay = args.get("id", ""), args.get("delay")
    ticket = engine.ticket(ticket_id)
    is_moved = ticket.reschedule(delay=delay, at=time_of("reschedule", "at", args.get("at")))
    return {"is_changed": is_moved, "ticket": plain(ticket.info())}


def _submit(engine: "Engine", args: Args) -> dict[str, Any]:
    """By the name of a task that is registered; the arguments are what JSON can say."""
    payload = args.get("payload")
    if not isinstance(payload, Mapping):
        raise ConfigError.option("submit", "payload", payload, "use the arguments by their names")
    task = engine.lookup(args.get("task", ""))
    set_up: dict[str, Any] = {
        "delay": args.get("delay"),
        "at": time_of("submit", "at", args.get("at")),
        "unique": args.get("unique"),
    }
    given = {name: value for name, value in set_up.items() if value is not None}
    call = (task.options(**given) if given else task).call_with(cast("dict[str, Any]", payload))
    ticket = engine.submit_call(call)
    return {"id": ticket.id, "created": ticket.created, "task": task.name}


def _pause(engine: "Engine", args: Args) -> dict[str, Any]:
    until: datetime | None = time_of("pause", "until", args.get("until"))
    is_known = steering.pause(
        engine,
        task=args.get("task"),
        target=args.get("target"),
        until=until,
        reason=args.get("reason", ""),
    )
    return {"is_known": is_known}


def _resume(engine: "Engine", args: Args) -> dict[str, Any]:
    was_paused = steering.resume(engine, task=args.get("task"), target=args.get("target"))
    return {"was_paused": was_paused}


CHANGES: dict[str, Callable[["Engine", Args], Any]] = {
    "cancel": _cancel,
    "cancel_many": _cancel_many,
    "reschedule": _reschedule,
    "submit": _submit,
    "pause": _pause,
    "resume": _resume,
}
