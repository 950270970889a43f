"""Story 4, driven: a bad weekend, then `monday_morning` as it was written. For a fresh folder."""

from importlib import import_module
from typing import Any

from parkade import Ambiguous, Engine, Outcome, TicketFailed

ORDERS = range(1, 6)
story: Any = import_module("s4_routes_and_dead_letters")


def weekend() -> list[str]:
    """The same tasks, behind a gateway that is down. The ids of what died."""
    engine = Engine("data")

    @engine.task(name="billing.charge", retry=None)
    async def charge(order: int, cents: int) -> str:
        if order == max(ORDERS):
            raise Ambiguous(f"no answer to order {order}")
        raise OSError(f"no route for order {order}")

    @engine.task
    async def receipt(outcome: Outcome[str]) -> None: ...

    @engine.task
    async def tell_support(outcome: Outcome[str]) -> str:
        return outcome.ticket_id

    routed = charge.options(on_done=receipt, on_dead=tell_support)
    with engine:
        tickets = [routed.submit(order, 100) for order in ORDERS]
        for ticket in tickets:
            try:
                ticket.result("20s")
            except TicketFailed:
                continue
    return [ticket.id for ticket in tickets]


def main() -> None:
    ids = weekend()
    with story.engine:
        story.monday_morning()
        for order, ticket_id in zip(ORDERS, ids[:-1], strict=False):
            assert story.charge.ticket(ticket_id).result("20s") == f"ch-{order}-100"
        assert story.engine.ticket(ids[-1]).info().state == "dead"
        assert story.sell(9, 100).result("20s") == "ch-9-100"
        for info in story.engine.find(task="receipt"):
            story.engine.ticket(info.id).result("20s")


main()
