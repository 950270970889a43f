"""Rules with what shows that they are kept, and how each is broken.

A law is a short life of one stepped shard. As it stands the law holds. With its rule broken, by a
patch that leaves everything else alone, it does not: so the rule is in the code, and would be
missed.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kit.stepped import Stepped, stepped
from parkade.store.errors import Damage

__all__ = [
    "DAY_MS",
    "HOUR_MS",
    "Rule",
    "check_broken",
    "check_kept",
    "name_of",
    "park",
    "send_checkpoint",
    "steps",
    "submit_far",
]

HOUR_MS, DAY_MS = 3_600_000, 86_400_000

Law = Callable[[Stepped], None]
Break = Callable[[pytest.MonkeyPatch], None]


class Rule(NamedTuple):
    """A rule of docs/architecture.md, by section and number; its law; and how it is broken.

    `durability` is the mode in which the law holds.
    """

    name: str
    law: Law
    broken: Break
    durability: str = "disk"


def name_of(rule: Rule) -> str:
    return f"{rule.name}-{rule.law.__name__}"


def check_kept(rule: Rule) -> None:
    """The law holds."""
    with stepped(durability=rule.durability) as shard:
        shard.run()
        rule.law(shard)


def check_broken(rule: Rule, patch: pytest.MonkeyPatch) -> None:
    """The law does not hold once its rule is broken."""
    rule.broken(patch)
    with pytest.raises((AssertionError, Damage)):
        check_kept(rule)


def steps(shard: Stepped, names: str) -> None:
    """Steps by name, separated by commas; everything is checked after each."""
    for name in names.split(", "):
        shard.step(name)
        shard.check()


def submit_far(shard: Stepped, count: int = 1, delay_ms: int = HOUR_MS) -> list[int]:
    """Tickets for much later; their submits are durable, and in no checkpoint."""
    drafts = [shard.draft(shard.now_ms + delay_ms) for _ in range(count)]
    for draft in drafts:
        shard.submit(draft)
    shard.run()
    return [draft.serial for draft in drafts]


def send_checkpoint(shard: Stepped) -> None:
    """A checkpoint of all that is durable is with the writer, which has not begun."""
    shard.want_checkpoint()
    steps(shard, "turn, turn, turn, turn")


def park(shard: Stepped, count: int = 1, delay_ms: int = HOUR_MS) -> list[int]:
    """Tickets for much later, in the store alone."""
    serials = submit_far(shard, count, delay_ms)
    shard.checkpoint()
    assert not shard.shard.core.hot
    return serials
