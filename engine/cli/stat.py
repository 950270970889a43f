"""`parkade stat`: what stores and journals hold, in numbers."""

import os
from typing import Any

import click

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.clock import SystemClock
from parkade.reader import existing_manifest
from parkade.storage_facts import storage_facts
from parkade.store.disk import RealDisk
from parkade.wording import bytes_text, count_text

__all__ = ["stat"]


@click.command()
@output_options
@click.pass_context
def stat(ctx: click.Context, is_json: bool, is_jsonl: bool) -> None:
    """Shows what each store and each journal hold. An engine may be running.

    Exits with 5 when a part cannot be read.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    disk, path = RealDisk(), os.path.abspath(ctx.obj)
    manifest = existing_manifest(disk, path, SystemClock().now_ms())
    parts = list(storage_facts(disk, path, manifest))
    if output.is_for_people:
        _print(Screen(), parts)
    else:
        output.document({"directory": path, "parts": parts}, lines=parts)
    if any(part["error"] or part["journal_damage"] for part in parts):
        ctx.exit(exits.DAMAGED)


def _print(screen: Screen, parts: list[dict[str, Any]]) -> None:
    rows = [_row(part) for part in parts if not part["error"]]
    heads = [
        "part", "tickets", "store", "free", "depth", "readers", "lsn", "journal", "files", "behind",
    ]  # fmt: skip
    screen.table(heads, rows, right=range(1, len(heads)))
    for part in parts:
        wrong = part["error"] or part["journal_damage"]
        if wrong:
            mark = screen.colour("DAMAGED", "red")
            screen.line(f"{part['part']} {mark}  {clean(wrong)}")


def _row(part: dict[str, Any]) -> list[str]:
    pages = part["used_pages"] + part["free_pages"]
    free = 100 * part["free_pages"] // pages if pages else 0
    return [
        part["part"],
        count_text(part["tickets"]),
        bytes_text(part["file_bytes"], binary=True),
        f"{free} %",
        str(part["depth"]),
        str(part["readers"]),
        count_text(part["store_lsn"]),
        bytes_text(part["journal_bytes"], binary=True),
        str(part["journal_segments"]),
        count_text(part["behind_records"]),
    ]
