"""`parkade reshard`: the same tickets in another number of shards."""

import os
from typing import Any

import click

from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.clock import SystemClock
from parkade.reader import existing_manifest
from parkade.resharding import Plan, Tools, plan_reshard
from parkade.resharding import reshard as reshard_directory
from parkade.store.disk import RealDisk
from parkade.store.manifest import SHARDS_MAX
from parkade.wording import bytes_text, count_text

__all__ = ["reshard"]


@click.command()
@click.argument("directory", required=False, metavar="[DIR]")
@click.option(
    "--to",
    type=click.IntRange(1, SHARDS_MAX),
    required=True,
    metavar="N",
    help="How many shards it is to have.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what it takes.")
@output_options
@click.pass_context
def reshard(
    ctx: click.Context, directory: str | None, to: int, dry_run: bool, is_json: bool, is_jsonl: bool
) -> None:
    """Deals the tickets of a directory to N shards.

    No engine may be open on it. Ids, order and history stay. All of it is written once more beside
    what is there, so there must be room. It may be killed at any time: what has then is the old
    directory or the new one, and the same command again goes on.
    """
    output, screen = Output(is_json=is_json, is_jsonl=is_jsonl), Screen()
    path, disk, clock = os.path.abspath(directory or ctx.obj), RealDisk(), SystemClock()
    tools = Tools(disk, clock, os.urandom)
    if dry_run:
        plan = plan_reshard(tools, path, existing_manifest(disk, path, clock.now_ms()), to)
    else:
        plan = reshard_directory(tools, path, to, _Progress(output, screen).tell)
    if not output.is_for_people:
        output.line(_facts(plan, path, dry_run))
    elif dry_run:
        _print_plan(screen, plan)
    elif plan.shards == to:
        screen.line(f"{clean(path)} has {to} shards already")
    else:
        screen.line(f"{clean(path)} has {to} shards now, {count_text(plan.tickets)} tickets")


class _Progress:
    """Tells people how far it is: on a terminal in one line, else a line for each thing begun."""

    def __init__(self, output: Output, screen: Screen) -> None:
        self._is_told = output.is_for_people
        self._screen = screen
        self._last = ""

    def tell(self, what: str, done: int, of: int) -> None:
        if not self._is_told:
            return
        if self._screen.is_terminal:
            share = f" {done * 100 // of} %" if done and of else ""
            click.echo(f"\r\x1b[K{what}{share} …", nl=what == "switching", err=True)
        elif what != self._last:
            self._screen.line(f"{what} …")
        self._last = what


def _print_plan(screen: Screen, plan: Plan) -> None:
    screen.line(f"{count_text(plan.tickets)} tickets, from {plan.shards} shards to {plan.to}")
    need, free = (bytes_text(count, binary=True) for count in (plan.need_bytes, plan.free_bytes))
    verdict = "" if plan.has_room else ": not enough"
    screen.line(f"needs {need} beside what is there, {free} are free{verdict}")


def _facts(plan: Plan, path: str, is_dry: bool) -> dict[str, Any]:
    return {
        "directory": path,
        "dry_run": is_dry,
        "from": plan.shards,
        "to": plan.to,
        "tickets": plan.tickets,
        "need_bytes": plan.need_bytes,
        "free_bytes": plan.free_bytes,
    }
