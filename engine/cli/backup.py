"""`parkade backup`, `parkade restore`: a directory copied as it is, and brought back."""

import os
from functools import partial

import click

from parkade.backing_up import Copied, back_up
from parkade.backing_up import restore as restore_directory
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.cli.source import ask_owner, is_engine_there
from parkade.clock import SystemClock
from parkade.reader import existing_manifest
from parkade.store.disk import RealDisk
from parkade.wording import bytes_text, count_text

__all__ = ["backup", "restore"]


@click.command()
@click.argument("dest", type=click.Path(readable=False))
@output_options
@click.pass_context
def backup(ctx: click.Context, dest: str, is_json: bool, is_jsonl: bool) -> None:
    """Copies the directory to DEST, which must not be there. An engine may be running.

    What was acknowledged before the command is in the copy. The copy is a directory that opens;
    to bring it back use `parkade restore`, which also sees to it that no id is given out twice.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    source = os.path.abspath(ctx.obj)
    existing_manifest(RealDisk(), source, SystemClock().now_ms())
    call = partial(ask_owner, source) if is_engine_there(source) else None
    copied = back_up(source, os.path.abspath(dest), call)
    if output.is_for_people:
        _print(f"{clean(source)} is backed up in {clean(copied.path)}", copied)
    else:
        _tell(output, source, copied)


@click.command()
@click.argument("source", type=click.Path(readable=False))
@click.argument("dest", type=click.Path(readable=False), required=False)
@output_options
@click.pass_context
def restore(
    ctx: click.Context, source: str, dest: str | None, is_json: bool, is_jsonl: bool
) -> None:
    """Makes a directory DEST of the backup SOURCE.

    Without DEST it is that of --dir; nothing may be there. Every row of the copy is verified.
    Tickets that ran after the backup was made run again; new tickets get ids that the directory of
    the backup has not given out.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    origin = os.path.abspath(source)
    existing_manifest(RealDisk(), origin, SystemClock().now_ms())
    copied = restore_directory(origin, os.path.abspath(ctx.obj if dest is None else dest))
    if not output.is_for_people:
        _tell(output, origin, copied)
        return
    _print(f"{clean(origin)} is restored in {clean(copied.path)}, every row verified", copied)
    Screen().line("tickets that ran after the backup was made run again; ids go on behind it")


def _tell(output: Output, source: str, copied: Copied) -> None:
    output.document(
        {
            "source": source,
            "directory": copied.path,
            "tickets": copied.tickets,
            "bytes": copied.bytes,
        }
    )


def _print(what: str, copied: Copied) -> None:
    size = bytes_text(copied.bytes, binary=True)
    Screen().line(f"{what}: {count_text(copied.tickets)} tickets, {size}")
