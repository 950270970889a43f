"""What commands that change tickets have in common: pages, plans, and whether to ask first."""

import sys
from collections.abc import Callable
from typing import Any

import click

from parkade.cli import exits
from parkade.wording import count_text

__all__ = ["agree", "all_pages", "is_terminal", "told"]


def all_pages(call: Callable[..., dict[str, Any]], asked: dict[str, Any]) -> dict[str, Any]:
    """The sum of all pages."""
    total: dict[str, Any] = {"matched": 0, "changed": 0, "skipped": {}}
    place: dict[str, Any] | None = None
    while True:
        page = call(**asked, place=place)
        for name in ("matched", "changed"):
            total[name] += page[name]
        for why, count in page["skipped"].items():
            total["skipped"][why] = total["skipped"].get(why, 0) + count
        place = page["place"]
        if place is None:
            return total


def told(facts: dict[str, Any], what: str) -> str:
    """`would cancel 207, skip 3 (3 too_late)`."""
    skipped = facts["skipped"]
    text = f"{what} {count_text(facts['changed'])}"
    if skipped:
        reasons = ", ".join(f"{count_text(count)} {why}" for why, count in sorted(skipped.items()))
        text += f", skip {count_text(sum(skipped.values()))} ({reasons})"
    return text


def is_terminal() -> bool:
    return sys.stdin.isatty()


def agree(ctx: click.Context, verb: str, plan: Callable[[], str]) -> None:
    """Asks on a terminal, after telling the plan; elsewhere it exits: more than one ticket needs
    `--yes`."""
    if not is_terminal():
        click.echo(f"parkade: this would {verb} more than one ticket: add --yes", err=True)
        ctx.exit(exits.REFUSED)
    click.echo(plan(), err=True)
    if not click.confirm("go on?", err=True):
        ctx.exit(exits.REFUSED)
