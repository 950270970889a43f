"""The application of a simulated world: its tasks, their limits, breakers and routes.

No handler is ever called: the world ends attempts. What a task is called, and what hears of its
ends, the laws across shards know too (`ROUTED`).
"""

from typing import Any, Final

from parkade import Breaker, Engine, Limit, Outcome, RetryPolicy
from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED

__all__ = ["LIMIT_T", "MIXES", "PLACES", "ROUTED", "make_engine"]

PLACES: Final = 4
LIMIT_T: Final = 3  # attempts of task t at a time, unless an operator says otherwise
MIXES: Final = 3

# By mix: the states of each task that a route hears of.
ROUTED: Final[tuple[dict[str, frozenset[int]], ...]] = (
    {},
    {"t": frozenset((DONE, DEAD)), "u": frozenset((DEAD, CANCELLED, EXPIRED))},
    {"t": frozenset((DEAD, CANCELLED, EXPIRED)), "u": frozenset((DONE, DEAD))},
)


def make_engine(
    path: str, mix: int, *, has_breaker: bool, has_leases: bool, **options: Any
) -> Engine:
    """An engine with its tasks. `mix`: 0 without routes; else where they lead. `has_leases`: task t
    has a lease that its handlers must renew, and task u a timeout."""
    engine = Engine(
        path,
        threads=PLACES,
        lock_wait=0,
        default_retry=RetryPolicy(None, backoff=["300ms"]),
        **options,
    )
    # Plain: born with its parent. With a key: another shard's. With a unique: perhaps never born.
    plain = engine.task(name="h")(_hears)
    keyed = engine.task(name="hk", key="k1")(_hears)
    named = engine.task(name="hn", unique="one")(_hears)
    routes_t: dict[str, Any] = {}
    routes_u: dict[str, Any] = {}
    if mix == 1:
        routes_t = {"on_done": keyed, "on_dead": plain}
        routes_u = {"on_dead": named, "on_cancel": keyed}
    elif mix == 2:
        routes_t = {"on_dead": named, "on_cancel": named}
        routes_u = {"on_done": plain, "on_dead": keyed}
    if has_breaker:
        routes_t["breaker"] = Breaker(failures=2, window="1h", open_for="2s", max_open_for="8s")
    if has_leases:
        routes_t["lease"], routes_u["timeout"] = "4s", "6s"
    engine.task(name="t", limits=[Limit(concurrency=LIMIT_T)], **routes_t)(_works)
    engine.task(name="u", on_crash="ambiguous", **routes_u)(_works)
    return engine


def _works(size: int = 0) -> int:
    raise AssertionError("the world ends attempts")


def _hears(outcome: Outcome[Any]) -> int:
    raise AssertionError("the world ends attempts")
