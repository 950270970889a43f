"""Outcomes as commands of bounded size."""

from collections.abc import Iterator, Sequence

from parkade import limits
from parkade.draft_sizes import draft_bytes
from parkade.shard.commands import Outcome

__all__ = ["portions"]


def portions(outcomes: list[Outcome]) -> Sequence[tuple[list[Outcome], int]]:
    """Each as large as a command may be, and about how many bytes it may write; mostly one."""
    least = limits.OUTCOME_BYTES
    sizes = [
        least + len(one.result) if one.error is None and one.born is None else _bytes_of(one)
        for one in outcomes
    ]
    total = sum(sizes)
    if total <= limits.COMMAND_BYTES_MAX:
        return [(outcomes, total)]
    return list(_split(outcomes, sizes))


def _bytes_of(outcome: Outcome) -> int:
    size = limits.OUTCOME_BYTES + len(outcome.result)
    if outcome.error is not None:
        size += len(outcome.error.message) + len(outcome.error.traceback)
    return size + sum(map(draft_bytes, outcome.born or ()))


def _split(outcomes: list[Outcome], sizes: list[int]) -> Iterator[tuple[list[Outcome], int]]:
    listed: list[Outcome] = []
    total = 0
    for outcome, size in zip(outcomes, sizes, strict=True):
        if listed and total + size > limits.COMMAND_BYTES_MAX:
            yield listed, total
            listed, total = [], 0
        listed.append(outcome)
        total += size
    if listed:
        yield listed, total
