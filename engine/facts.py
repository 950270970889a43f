"""What the command line asks, answered with plain values: of an engine's desk or of a reader's.

Times are ISO 8601 in UTC, spans ms, sizes bytes. What stands here is what `--json` prints.
"""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from parkade.asking import Request
from parkade.asks import Look
from parkade.desk import Desk
from parkade.durations import datetime_of
from parkade.errors import ConfigError, UnknownTicket
from parkade.finding import find
from parkade.payload import decode_untyped
from parkade.shard.states import CANCELLED, DONE
from parkade.showing import attempt_infos
from parkade.store.lock import Owner
from parkade.views import State

__all__ = [
    "AsShown", "content_of", "held_fact", "list_facts", "owner_facts",
    "plain", "show_facts", "time_of",
    "why_facts",
]  # fmt: skip

AsShown = Callable[[str, Any], Any]  # (task, its arguments) -> the arguments as they may be shown


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, datetime):
        at = value.astimezone(UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast(Any, value).items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast(Any, value)]
    return value


def time_of(call: str, name: str, text: Any) -> datetime | None:
    """A point in time that was sent as text. Raises `ConfigError`."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        advice = "use ISO 8601, like 2027-01-31T09:00:00+01:00"
        raise ConfigError.option(call, name, text, advice) from None


def list_facts(desk: Desk, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A page: `asked` has state, task, key, target, tag (name and value), due_before (ISO 8601),
    limit, cursor, each where it is wanted.

    Raises `ConfigError` for what cannot be asked, and what the desk raises.
    """
    call = "ls"
    for name in ("state", "task", "key", "target", "cursor"):
        if not isinstance(asked.get(name), str | None):
            raise ConfigError.option(call, name, asked[name], "use text")
    tag = asked.get("tag")
    page = desk.ask(
        find(
            desk,
            call=call,
            state=cast("State | None", asked.get("state")),
            task=asked.get("task"),
            key=asked.get("key"),
            target=asked.get("target"),
            tag=None if tag is None else cast("tuple[str, str]", tuple(tag)),
            due_before=time_of(call, "due_before", asked.get("due_before")),
            limit=asked.get("limit", 50),
            cursor=asked.get("cursor"),
        )
    )
    return cast("dict[str, Any]", plain(page))


def show_facts(desk: Desk, ticket_id: str, as_shown: AsShown | None = None) -> dict[str, Any]:
    """Everything about one ticket. Raises `UnknownTicket`, and what the desk raises.

    `content` is the payload of a ticket, or the result of one that is done; None with
    `content_bytes` None: it is not kept. `held` says why a ready ticket is not started, where that
    is known; `reason` is what was said by whoever resolved or cancelled it.
    """
    known = desk.parse(ticket_id)
    shard = known.part % desk.runtime.shard_count
    looks = [
        (shard, Look(known.serial, wants_body=True)),
        (shard, Look(known.serial, wants_history=True)),
    ]

    def finish(answers: list[Any]) -> dict[str, Any]:
        seen, with_history = answers
        if seen is None or with_history is None:
            raise UnknownTicket(ticket_id)
        ticket, body = seen.ticket, seen.body
        content = None if body is None else content_of(body)
        if as_shown is not None and ticket.state != DONE:
            content = as_shown(ticket.task, content)
        return {
            "ticket": plain(desk.shown(ticket)),
            "held": None,
            "reason": ticket.why if ticket.state in (DONE, CANCELLED) else None,
            "content_is": "result" if ticket.state == DONE else "payload",
            "content": content,
            "content_bytes": None if body is None else len(body),
            "attempts": [plain(info) for info in attempt_infos(with_history.rows or [])],
        }

    return desk.ask(Request("show", "show", looks, finish))


def why_facts(desk: Desk, ticket_id: str) -> dict[str, Any]:
    """Why a ticket is not running. Raises `UnknownTicket`, and what the desk raises."""
    return {"id": ticket_id, **plain(desk.ask(desk.why(ticket_id, "why")))}


def held_fact(desk: Desk, ticket: Mapping[str, Any]) -> str | None:
    """Why a ticket, as `show_facts` tells of it, is not started by the engine of this desk."""
    if ticket["state"] != "ready":
        return None
    return desk.ask(desk.held(ticket["id"], "show"))


def owner_facts(owner: Owner) -> dict[str, Any]:
    return {
        "pid": owner.pid,
        "host": owner.host,
        "title": owner.title,
        "started_at": plain(datetime_of(owner.started_at_ms)),
    }


def content_of(body: bytes) -> Any:
    """Bytes become base64, and what JSON has no word for its repr."""
    try:
        return msgspec.to_builtins(decode_untyped(body), str_keys=True, enc_hook=repr)
    except Exception as error:
        return f"<{len(body)} bytes that cannot be read: {error}>"
