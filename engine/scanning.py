"""Looking through all tickets with a function of the application's: slow, in slices, and honest
about where it stopped."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from parkade.asking import check_not_on_loop
from parkade.durations import Duration, parse_duration_ms
from parkade.errors import ConfigError
from parkade.finding import check_limit, cursor_below, find
from parkade.views import Page, TicketInfo

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["scan"]

CALL = "engine.scan"
SLICE = 500  # tickets asked for at a time: what the budget can be overrun by, beside `where`


def scan(
    desk: "Desk", where: Callable[[TicketInfo], bool], *, budget: Duration, limit: int
) -> Page[TicketInfo]:
    """See `Engine.scan`."""
    check_not_on_loop(CALL, "asyncio.to_thread")
    if not callable(cast(object, where)):
        advice = "use a function of a TicketInfo that says whether it is wanted"
        raise ConfigError.option(CALL, "where", where, advice)
    check_limit(CALL, limit)
    budget_ms = parse_duration_ms(budget, what=f"{CALL}(budget)")
    clock = desk.runtime.clock
    until_ms = clock.monotonic_ms() + budget_ms
    items: list[TicketInfo] = []
    scanned = 0
    cursor: str | None = None
    while True:
        page = desk.ask(find(desk, call="engine.find", limit=SLICE, cursor=cursor))
        for nth, info in enumerate(page.items, 1):
            scanned += 1
            if where(info):
                items.append(info)
            is_full, is_late = len(items) == limit, clock.monotonic_ms() >= until_ms
            if is_full or is_late:
                is_last = nth == len(page.items) and page.next is None
                next_cursor = None if is_last else cursor_below(desk, info)
                return Page(items, next_cursor, scanned, complete=is_full or is_last)
        cursor = page.next
        if cursor is None:
            return Page(items, None, scanned, complete=True)
