"""What the command line asks and changes of breakers and limits, answered with plain values.

Which breakers there are, `status` tells.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from parkade import steering
from parkade.facts import plain

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["LEVER_CHANGES"]

Args = Mapping[str, Any]


def _limits(engine: "Engine", _: Args) -> dict[str, Any]:
    return {"limits": [plain(limit) for limit in engine.limits.list()]}


def _set_limit(engine: "Engine", args: Args) -> dict[str, Any]:
    """`scope`, `concurrency`, `rate` (starts and a span); with neither of them: the code's hold."""
    rate = args.get("rate")
    engine.limits.set(
        args.get("scope", ""),
        concurrency=args.get("concurrency"),
        rate=tuple(cast(Any, rate)) if isinstance(rate, list) else rate,
    )
    return {}


def _open_breaker(engine: "Engine", args: Args) -> dict[str, Any]:
    engine.breakers.force_open(
        args.get("breaker", ""), for_=args.get("span"), reason=args.get("reason", "")
    )
    return {}


def _close_breaker(engine: "Engine", args: Args) -> dict[str, Any]:
    return {"was_open": steering.close_breaker(engine, args.get("breaker", ""))}


LEVER_CHANGES: dict[str, Callable[["Engine", Args], Any]] = {
    "limit.ls": _limits,
    "limit.set": _set_limit,
    "breaker.open": _open_breaker,
    "breaker.close": _close_breaker,
}
