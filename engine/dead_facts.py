"""What the command line asks of the dead letter office, answered with plain values.

By an engine or, for what changes nothing, by a reader. What changes many tickets does one page and
says where it stands, so that no request takes long: whoever asks goes on from there.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from parkade.dead_bulk import Bulk, Dropping, Place, Reviving, Which
from parkade.errors import DeadReason
from parkade.facts import plain, time_of
from parkade.payload import check_size

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["DEAD_ANSWERS", "DEAD_CHANGES"]

Args = Mapping[str, Any]


def _groups(engine: "Engine", args: Args) -> dict[str, Any]:
    groups = engine.dead.groups(limit=args.get("limit", 50))
    return {"groups": [plain(group) for group in groups]}


def _list(engine: "Engine", args: Args) -> dict[str, Any]:
    page = engine.dead.find(
        task=args.get("task"),
        reason=cast("DeadReason | None", args.get("reason")),
        error_type=args.get("error_type"),
        group=args.get("group"),
        since=time_of("dead ls", "since", args.get("since")),
        until=time_of("dead ls", "until", args.get("until")),
        limit=args.get("limit", 50),
        cursor=args.get("cursor"),
    )
    return cast("dict[str, Any]", plain(page))


def _revive(engine: "Engine", args: Args, *, is_dry: bool) -> dict[str, Any]:
    call = "engine.dead.revive"
    change = Reviving(
        engine,
        call,
        delay=args.get("delay"),
        rate=args.get("rate"),
        keep_attempts=args.get("keep_attempts", False),
        accept_ambiguous=args.get("accept_ambiguous", False),
    )
    return _one_page(Bulk(engine, call, _which(args), change, is_dry=is_dry, place=_place(args)))


def _drop(engine: "Engine", args: Args, *, is_dry: bool) -> dict[str, Any]:
    call = "engine.dead.drop"
    return _one_page(
        Bulk(engine, call, _which(args), Dropping(), is_dry=is_dry, place=_place(args))
    )


def _which(args: Args) -> Which:
    return Which(tuple(args.get("ids") or ()), args.get("group"), args.get("task"))


def _place(args: Args) -> Place | None:
    place = args.get("place")
    return None if place is None else msgspec.convert(place, Place)


def _one_page(bulk: Bulk) -> dict[str, Any]:
    """`place` is what the next request goes on with; None: all is done."""
    has_more = bulk.step()
    place = msgspec.to_builtins(bulk.place) if has_more else None
    return {**plain(bulk.result), "place": place}


def _resolve(engine: "Engine", args: Args) -> dict[str, Any]:
    """The result is what JSON can say. It is held against the handler where one is registered."""
    ticket_id, desk = args.get("id", ""), engine.desk("engine.dead.resolve")
    name = desk.ask(desk.info(ticket_id, "engine.dead.resolve")).task
    encoded = msgspec.msgpack.encode(args.get("result"))
    check_size(name, encoded, desk.runtime.options.max_payload, what="result")
    task = engine.task_of(name)
    if task is not None:
        task.decode_result(encoded)
    engine.dead.resolve_encoded(ticket_id, encoded, str(args.get("note", "")))
    return {"id": ticket_id, "is_checked": task is not None}


DEAD_ANSWERS: dict[str, Callable[["Engine", Args], Any]] = {
    "dead.groups": _groups,
    "dead.ls": _list,
    "dead.plan_revive": lambda engine, args: _revive(engine, args, is_dry=True),
    "dead.plan_drop": lambda engine, args: _drop(engine, args, is_dry=True),
}
DEAD_CHANGES: dict[str, Callable[["Engine", Args], Any]] = {
    "dead.revive": lambda engine, args: _revive(engine, args, is_dry=False),
    "dead.drop": lambda engine, args: _drop(engine, args, is_dry=False),
    "dead.resolve": _resolve,
}
