"""`parkade verify`: reads every file and tells what is wrong."""

import os
from typing import Any

import click
import msgspec

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.clock import SystemClock
from parkade.reader import existing_manifest
from parkade.store.disk import RealDisk
from parkade.verifying import PROBLEMS_MAX, PartReport, verify_apart
from parkade.wording import count_text

__all__ = ["verify"]


@click.command()
@click.option(
    "--deep", is_flag=True, help="Read every row, and hold the tables against each other."
)
@output_options
@click.pass_context
def verify(ctx: click.Context, deep: bool, is_json: bool, is_jsonl: bool) -> None:
    """Checks every file of the directory. Writes nothing; an engine may be running.

    Exits with 1 when a problem was found.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    screen = Screen()
    disk, path = RealDisk(), os.path.abspath(ctx.obj)
    manifest = existing_manifest(disk, path, SystemClock().now_ms())
    parts: list[dict[str, Any]] = []
    is_sound = True
    for part in verify_apart(path, manifest, deep=deep):
        is_sound &= part.is_sound
        parts.append(_facts(part))
        if output.is_for_people:
            _print(screen, part)
        elif output.is_jsonl:
            output.line(parts[-1])
    if output.is_for_people and not is_sound:
        screen.line("\nnothing was changed. To keep what is whole:")
        screen.line(f"  parkade repair {clean(path)} {clean(path)}.new")
    if not output.is_for_people and not output.is_jsonl:
        output.line({"directory": path, "deep": deep, "sound": is_sound, "parts": parts})
    if not is_sound:
        ctx.exit(exits.NEGATIVE)


def _facts(part: PartReport) -> dict[str, Any]:
    return {
        "part": part.name,
        "sound": part.is_sound,
        "tickets": part.tickets,
        "journal_records": part.journal_records,
        "tail_frames": part.tail_frames,
        "unreadable": part.is_unread,
        "problems": [msgspec.to_builtins(problem) for problem in part.problems],
        "more_problems": part.is_cut,
    }


def _print(screen: Screen, part: PartReport) -> None:
    name = part.name.ljust(9)
    notes = [] if part.name == "house" else [f"{count_text(part.tickets)} tickets"]
    notes.append(f"{count_text(part.journal_records)} records in the journal")
    if part.tail_frames:
        notes.append(f"{part.tail_frames} frames at its end that nobody was told of")
    if part.is_sound:
        screen.line(f"{name}  {screen.colour('ok', 'green')}       {', '.join(notes)}")
        return
    count = f"{PROBLEMS_MAX}+" if part.is_cut else count_text(len(part.problems))
    noun = "problem" if count == "1" else "problems"
    mark = "UNREADABLE" if part.is_unread else "DAMAGED"
    screen.line(f"{name}  {screen.colour(mark, 'red')}  {count} {noun}")
    for problem in part.problems:
        screen.line(f"  {clean(problem.text)}")
