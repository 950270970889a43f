"""Groups of dead letters over all shards: counted from their index, told by a few tickets of each.

    counts, a slice of every shard at a time  ->  the largest of them  ->  two tickets a shard

The time goes with the number of groups, never with the number of the dead.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parkade.asking import Request
from parkade.asks import GroupEnds, GroupsOf, ShardGroups
from parkade.durations import datetime_of
from parkade.shard.grouping import GROUP_BYTES, cause_of
from parkade.shard.ticket import Ticket
from parkade.views import DeadGroup

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["count_group", "count_groups", "largest_groups"]

GROUPS_SLICE = 4_096  # of a shard, counted in one read: some milliseconds
# What a ticket died of that has no error of its own, by its reason.
_UNSAID = {
    "ambiguous": "cut off when its process ended: it may have happened",
    "crashed": "its process ended whenever it ran",
    "exhausted": "its attempts are spent, the last one was cut off",
    "late": "its time was over before it was tried again",
}


def largest_groups(desk: "Desk", call: str, limit: int) -> list[DeadGroup]:
    """The groups with the most tickets, the largest first. Raises what the desk raises."""
    counts, homes = _all_counts(desk, call)
    largest = heapq.nsmallest(limit, counts, key=lambda group: (-counts[group], group))
    asked: dict[int, list[bytes]] = {}
    for group in largest:
        for shard in homes[group]:
            asked.setdefault(shard, []).append(group)
    asks = [(shard, GroupEnds(groups)) for shard, groups in asked.items()]
    ends: dict[bytes, list[Ticket]] = {group: [] for group in largest}

    def gather(answers: list[dict[bytes, list[Ticket]]]) -> None:
        for answer in answers:
            for group, tickets in answer.items():
                ends[group] += tickets

    desk.ask(Request(call, _twin(call), asks, gather))
    # A group without tickets has been brought back or dropped since it was counted.
    return [_told(group, counts[group], ends[group]) for group in largest if ends[group]]


def count_group(desk: "Desk", call: str, group: bytes) -> int:
    """How many dead tickets a group has."""
    number = int.from_bytes(group, "big")
    after = (number - 1).to_bytes(GROUP_BYTES, "big") if number else b""
    asks = [(shard, GroupsOf(after, 1)) for shard in range(desk.runtime.shard_count)]

    def add_up(answers: list[ShardGroups]) -> int:
        return sum(answer.counts.get(group, 0) for answer in answers)

    return desk.ask(Request(call, _twin(call), asks, add_up))


def count_groups(desk: "Desk", call: str, most: int) -> int:
    """How many groups there are; `most` where there are as many or more. Raises what the desk
    raises."""
    counts, _ = _all_counts(desk, call, most)
    return min(most, len(counts))


def _all_counts(
    desk: "Desk", call: str, most: int | None = None
) -> tuple[Counter[bytes], dict[bytes, list[int]]]:
    """How many tickets each group has, and in which shards; with `most` groups it is enough."""
    counts: Counter[bytes] = Counter()
    homes: dict[bytes, list[int]] = {}
    places = dict.fromkeys(range(desk.runtime.shard_count), b"")
    while places and (most is None or len(counts) < most):
        asks = [(shard, GroupsOf(after, GROUPS_SLICE)) for shard, after in places.items()]
        request: Request[list[Any]] = Request(call, _twin(call), asks, lambda got: got)
        answers = desk.ask(request)
        for (shard, _), answer in zip(asks, answers, strict=True):
            for group, count in answer.counts.items():
                counts[group] += count
                homes.setdefault(group, []).append(shard)
            if answer.last is None:
                del places[shard]
            else:
                places[shard] = answer.last
    return counts, homes


def _told(group: bytes, count: int, ends: Sequence[Ticket]) -> DeadGroup:
    last = max(ends, key=lambda ticket: (ticket.finished_ms, ticket.serial))
    error_type, message = cause_of(last)
    if not error_type:
        message = _UNSAID.get(message, message)
    return DeadGroup(
        key=group.hex(),
        task=last.task,
        error_type=error_type,
        sample=message,
        count=count,
        first_at=datetime_of(min(ticket.finished_ms for ticket in ends)),
        last_at=datetime_of(last.finished_ms),
    )


def _twin(call: str) -> str:
    where, _, verb = call.rpartition(".")
    return f"{where}.a{verb}"
