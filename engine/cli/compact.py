"""`parkade compact`, `parkade export`: stores without free pages, tickets as lines of JSON."""

import os
from typing import Any

import click

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, output_options
from parkade.clock import SystemClock
from parkade.compacting import compact as compact_directory
from parkade.errors import ParkadeError
from parkade.exporting import export_tickets
from parkade.reader import existing_manifest, open_readonly
from parkade.store.disk import RealDisk
from parkade.wording import bytes_text

__all__ = ["compact", "export"]

STATES = ("ready", "scheduled", "running", "done", "dead", "cancelled", "expired")


@click.command()
@output_options
@click.pass_context
def compact(ctx: click.Context, is_json: bool, is_jsonl: bool) -> None:
    """Writes each store anew without free pages. No engine may be running.

    Needs room for the largest store beside itself. Killed at any moment, nothing is lost.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    path = os.path.abspath(ctx.obj)
    existing_manifest(RealDisk(), path, SystemClock().now_ms())
    parts: list[dict[str, Any]] = []
    for part in compact_directory(path):
        parts.append(part)
        if output.is_for_people:
            before, after = (
                bytes_text(part[f"{one}_bytes"], binary=True) for one in ("before", "after")
            )
            Screen().line(f"{part['part'].ljust(9)}  {before} -> {after}")
    if not output.is_for_people:
        output.document({"directory": path, "parts": parts}, lines=parts)


@click.command()
@click.option("--state", "-s", type=click.Choice(STATES), help="Only these.")
@click.option("--task", "-t", help="Only those of this task.")
@click.pass_context
def export(ctx: click.Context, state: str | None, task: str | None) -> None:
    """Writes every ticket as a line of JSON.

    With its payload or its result; an engine may be running.
    Secrets are written as they are. Exits with 1 when a ticket is damaged: its line says so; with
    5 when a shard cannot be read, or has more tickets than can be reached: the others are written.
    """
    output = Output(is_json=False, is_jsonl=True)
    path = os.path.abspath(ctx.obj)
    is_whole = True
    failures: list[ParkadeError] = []
    with open_readonly(path) as reader:
        for facts in export_tickets(RealDisk(), reader, failures, state=state, task=task):
            is_whole &= "damaged" not in facts
            output.line(facts)
    for failure in failures[1:]:
        click.echo(f"parkade: {failure}", err=True)
    if failures:
        raise failures[0]
    if not is_whole:
        ctx.exit(exits.NEGATIVE)
