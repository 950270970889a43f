"""Events as the command line gets them over the control socket: plain values, a page at a time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parkade.checks import check_count
from parkade.events import Event, event_of, kinds_of
from parkade.subscription import names_of

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["event_facts", "tail_facts"]

PAGE_EVENTS_MAX = 1_000


def tail_facts(engine: "Engine", args: Mapping[str, Any]) -> dict[str, Any]:
    """`kinds` and `task` as for `engine.events`; `since`: a number of this open, None for its
    latest. `next` is where to go on, `dropped` how many events the engine no longer had."""
    runtime = engine.desk("tail").runtime
    feed, since = runtime.host.feed, args.get("since")
    kinds = kinds_of("tail", args.get("kinds") or ())
    task = args.get("task")
    names = None if task is None else names_of(runtime, "tail", task)
    if since is None:
        return {"events": [], "next": feed.last, "dropped": 0}
    check_count("tail", "since", since, least=0)
    if since > feed.last:
        since = 0  # of an earlier open
    first, entries = feed.after(since)
    found: list[dict[str, Any]] = []
    last = max(since, first - 1)
    for seq, note in entries:
        if len(found) == PAGE_EVENTS_MAX:
            break
        last = seq
        if note[0] in kinds and (names is None or note[4] in names):
            found.append(event_facts(event_of(seq, note, runtime.id_of_parts)))
    return {"events": found, "next": last, "dropped": max(0, first - 1 - since)}


def event_facts(event: Event) -> dict[str, Any]:
    """An event as plain values; times are ISO texts."""
    details = {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in event.data.items()
    }
    return {
        "seq": event.seq,
        "at": event.at.isoformat(),
        "kind": event.kind,
        "ticket_id": event.ticket_id,
        "task": event.task,
        "data": details,
    }
