"""`parkade demo`: shows on this machine that an acknowledged ticket survives a kill -9."""

import dataclasses
import os
import shutil
import tempfile
from typing import Any

import click
import msgspec

from parkade.cli import exits
from parkade.cli.demo_run import Demo, Findings
from parkade.cli.screen import Screen
from parkade.clock import SystemClock
from parkade.wording import bytes_text, count_text, span_text

__all__ = ["demo"]


@click.command()
@click.option(
    "--tickets",
    type=click.IntRange(100, 2_000_000),
    default=100_000,
    show_default=True,
    help="How many are to be acknowledged before the kill.",
)
@click.option("--keep", is_flag=True, help="Leave the directory, to look around in.")
@click.option("--json", "is_json", is_flag=True, help="Tell the numbers alone, as JSON.")
@click.pass_context
def demo(ctx: click.Context, tickets: int, keep: bool, is_json: bool) -> None:
    """Submits, kills the process, opens again, and compares. Takes under half a minute.

    Works in a temporary directory of its own. Exits with 1 if anything that was acknowledged is
    missing.
    """
    clock = SystemClock()
    begun_ms = clock.monotonic_ms()
    place = tempfile.mkdtemp(prefix="parkade-demo-")
    shown = Demo(place, tickets)
    try:
        _Story(Screen(), shown, tickets, is_quiet=is_json).tell()
    finally:
        shown.stop()
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    took_ms = clock.monotonic_ms() - begun_ms
    found = shown.findings
    if is_json:
        click.echo(_json(found, took_ms, place if keep else None))
    else:
        _print_end(found, took_ms, shown.path if keep else None)
    if not found.is_kept:
        ctx.exit(exits.NEGATIVE)


class _Story:
    """The stages with what is said of each."""

    def __init__(self, screen: Screen, demo: Demo, tickets: int, *, is_quiet: bool) -> None:
        self._screen = screen
        self._demo = demo
        self._tickets = tickets
        self._is_quiet = is_quiet

    def tell(self) -> None:
        found = self._demo.findings
        self._head(f"A process submits {count_text(self._tickets)} tickets and runs what is due")
        self._line(f"directory     {self._demo.path}")
        self._demo.run_and_kill(self._submitting)
        self._clear()
        rate = found.acknowledged * 1_000 // max(1, found.submit_ms)
        self._line(
            f"acknowledged  {count_text(found.acknowledged)}, some {count_text(rate)} a second"
        )
        self._line(f"done          {count_text(found.done_before)}")
        self._head(f"kill -9 {found.killed_pid}")
        self._line(
            f"it was running {count_text(found.running_at_kill)} tickets at that moment, and was "
            "in the middle of submitting more"
        )
        self._head("Another process opens the directory")
        self._demo.resume(self._finishing)
        self._clear()
        self._resumed(found)
        self._head("What the sleepers cost")
        self._demo.measure()
        self._measured(found)

    def _resumed(self, found: Findings) -> None:
        self._line(f"opened        in {span_text(found.opened_ms)}")
        self._line(
            f"acknowledged  {count_text(found.there)} of {count_text(found.acknowledged)} are there"
            + (f", {count_text(len(found.missing))} MISSING" if found.missing else "")
        )
        if found.unannounced:
            self._line(
                f"              and {count_text(found.unannounced)} whose acknowledgement the kill "
                "cut off"
            )
        self._line(
            f"cut off       {count_text(found.cut_off_done)} of the "
            f"{count_text(found.running_at_kill)} that were running ran again, and are done"
        )
        self._line(
            f"due           {count_text(found.due_done)} of {count_text(found.due)} are done"
            + (f", {found.wrong_results} WRONG" if found.wrong_results else "")
        )
        again = found.run_twice - found.cut_off_done
        if again > 0:
            self._line(
                f"              {count_text(again)} of them ran twice: they had ended, and the "
                "kill came before that was on disk"
            )

    def _measured(self, found: Findings) -> None:
        asleep = max(1, found.asleep)
        self._line(f"asleep        {count_text(found.asleep)}, due in one hour to three years")
        self._line(f"memory        {bytes_text(found.memory_bytes)} more than an empty directory")
        self._line(
            f"disk          {bytes_text(found.store_bytes)}: "
            f"{found.store_bytes / asleep:.0f} bytes each, and "
            f"{bytes_text(found.journal_bytes)} of journal, which does not grow"
        )
        self._line(f"opening       takes {span_text(found.reopened_ms)} with all of them")

    def _submitting(self, acknowledged: int, done: int, running: int) -> None:
        self._live(
            f"acknowledged  {count_text(acknowledged)} of {count_text(self._tickets)} · done "
            f"{count_text(done)} · running {running}"
        )

    def _finishing(self, there: int, done: int, waiting: int) -> None:
        self._live(
            f"acknowledged  {count_text(there)} found · done {count_text(done)} · to do {waiting}"
        )

    def _head(self, text: str) -> None:
        if not self._is_quiet:
            self._screen.line(f"\n{self._screen.colour(text, None, is_bold=True)}")

    def _line(self, text: str) -> None:
        if not self._is_quiet:
            self._screen.line(f"  {text}")

    def _live(self, text: str) -> None:
        """A line that the next one takes the place of; only a terminal has such."""
        if self._screen.is_terminal and not self._is_quiet:
            click.echo(f"\r\033[K  {text}"[: self._screen.width + 4], nl=False)

    def _clear(self) -> None:
        if self._screen.is_terminal and not self._is_quiet:
            click.echo("\r\033[K", nl=False)


def _json(found: Findings, took_ms: int, place: str | None) -> str:
    facts: dict[str, Any] = {"kept": found.is_kept, **dataclasses.asdict(found)}
    facts |= {"took_ms": took_ms, "directory": place}
    return msgspec.json.encode(facts).decode()


def _print_end(found: Findings, took_ms: int, path: str | None) -> None:
    screen = Screen()
    if found.is_kept:
        verdict = screen.colour("Nothing that was acknowledged is lost.", "green", is_bold=True)
    else:
        verdict = screen.colour("A promise was BROKEN; see above.", "red", is_bold=True)
    screen.line(f"\n{verdict} It took {span_text(took_ms)}.")
    if path is not None:
        screen.line(f"\nLook around:  parkade --dir {path} status")
        screen.line(f"Remove it:    rm -r {os.path.dirname(path)}")
