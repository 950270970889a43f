"""What the keys of one shard ask of admission before a ticket may start."""

from typing import TYPE_CHECKING

from parkade.queues import Owner
from parkade.shard.ticket import Ticket

if TYPE_CHECKING:
    from parkade.admission import Admission

__all__ = ["Gate"]


class Gate:
    """What a shard's keys ask."""

    __slots__ = ("_admission", "_owner")

    def __init__(self, admission: "Admission", owner: Owner) -> None:
        self._admission = admission
        self._owner = owner

    def places(self, ticket: Ticket) -> int:
        guards = self._admission.guards
        plan = guards.plan_of(ticket.task, ticket.target)
        assert ticket.key is not None, ticket.serial
        return guards.key_places(plan, ticket.key)

    def holds(self, ticket: Ticket) -> str | int | None:
        admission = self._admission
        if ticket.key is None and not ticket.is_suspect and not admission.lag_ms:
            return None
        return admission.reason_of(self._owner, ticket)

    def is_held(self, lane: tuple[str, str | None, int]) -> bool:
        return self._admission.is_held(lane)
