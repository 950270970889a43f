"""`parkade repair`: what is whole of a damaged directory, in a new one."""

import os
from typing import Any

import click
import msgspec

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.rebuilding import Lost
from parkade.repairing import PartRepair, Repair
from parkade.repairing import repair as repair_directory
from parkade.wording import count_text

__all__ = ["repair"]

SHOWN_MAX = 50  # of one part, on a screen; --json has all


@click.command()
@click.argument("source", type=click.Path(readable=False))
@click.argument("dest", type=click.Path(readable=False))
@click.option(
    "--past-holes",
    "is_past_holes",
    is_flag=True,
    help="Also apply records of the journal that stand behind lost ones.",
)
@output_options
@click.pass_context
def repair(
    ctx: click.Context,
    source: str,
    dest: str,
    is_past_holes: bool,
    is_json: bool,
    is_jsonl: bool,
) -> None:
    """Makes a new directory DEST of what is whole in SOURCE.

    SOURCE is not changed. Lists what was lost. Exits with 1 when anything was.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    origin = os.path.abspath(source)
    report = repair_directory(origin, os.path.abspath(dest), is_past_holes=is_past_holes)
    if output.is_for_people:
        _print(report)
    else:
        parts = [_facts(part) for part in report.parts]
        document: dict[str, Any] = {
            "source": origin, "directory": report.path, "notes": report.notes, "parts": parts,
            "whole": not report.has_losses,
        }  # fmt: skip
        output.document(document, lines=parts)
    if report.has_losses:
        ctx.exit(exits.NEGATIVE)


def _facts(part: PartRepair) -> dict[str, Any]:
    return {"part": part.name, **msgspec.to_builtins(part)}


def _print(report: Repair) -> None:
    screen = Screen()
    for note in report.notes:
        screen.line(clean(note))
    for part in report.parts:
        kept = "" if part.name == "house" else f"{count_text(part.tickets)} tickets, "
        mark = screen.colour("LOSSES", "red") if part.has_losses else screen.colour("ok", "green")
        screen.line(
            f"{part.name.ljust(9)}  {mark.ljust(6)}  {kept}{count_text(part.records)} records of "
            "the journal"
        )
        for note in part.notes:
            screen.line(f"  {clean(note)}")
        for first, last in part.holes:
            screen.line(f"  lost: records of the journal, LSN {first} to {last}")
        for first, last in part.left:
            screen.line(f"  left: records behind lost ones, LSN {first} to {last} (--past-holes)")
        for lost in part.lost[:SHOWN_MAX]:
            screen.line(f"  lost: {clean(_text(lost))}")
        if len(part.lost) > SHOWN_MAX:
            screen.line(f"  and {count_text(len(part.lost) - SHOWN_MAX)} more: --json has all")
    screen.line(f"\n{clean(report.path)} is whole, and every row of it is verified")


def _text(lost: Lost) -> str:
    who = "" if lost.ticket is None else f" {lost.ticket}"
    task = "" if lost.task is None else f" ({lost.task})"
    return f"{lost.what}{who}{task}: {lost.detail}"
