"""What people see: tables, colours on a terminal, local times; and what machines get: JSON.

Text that comes out of tickets is made harmless first: nothing in it can move the cursor.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec

from parkade.clock import SystemClock
from parkade.wording import span_text

__all__ = ["Output", "Screen", "clean", "cut", "json_text", "output_options"]

F = TypeVar("F", bound=Callable[..., Any])
COLOURS = {
    "ready": "cyan",
    "running": "cyan",
    "scheduled": "blue",
    "done": "green",
    "dead": "red",
    "cancelled": "yellow",
    "expired": "yellow",
}


def clean(text: object) -> str:
    """One line without anything that a terminal would obey."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text)
    )


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def json_text(value: Any) -> str:
    """A value as JSON. Half a surrogate pair, which a shell's bytes that are no UTF-8 become, is
    written as its escape."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


class Output:
    """How a command is to answer: for people, as one JSON document, or as one line for each."""

    def __init__(self, *, is_json: bool, is_jsonl: bool) -> None:
        if is_json and is_jsonl:
            raise click.UsageError("--json and --jsonl: use one of them")
        self.is_for_people = not (is_json or is_jsonl)
        self.is_jsonl = is_jsonl

    def document(self, value: Any, *, lines: Iterable[Any] | None = None) -> None:
        """The whole answer; `lines` are its parts, for `--jsonl`."""
        for one in [value] if lines is None or not self.is_jsonl else lines:
            self.line(one)

    def line(self, value: Any) -> None:
        """One document on a line of its own."""
        click.echo(json_text(value))


def output_options(command: F) -> F:
    """Adds `--json` and `--jsonl`; the command gets `is_json` and `is_jsonl`, for an `Output`."""
    for name, what in (("jsonl", "one JSON document per line"), ("json", "one JSON document")):
        command = click.option(f"--{name}", f"is_{name}", is_flag=True, help=f"Answer as {what}.")(
            command
        )
    return command


class Screen:
    """Prints for people on standard output."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._has_colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self.width = shutil.get_terminal_size().columns if self.is_terminal else 10_000
        self._now_ms = SystemClock().now_ms()

    def line(self, text: str = "") -> None:
        click.echo(text)

    def colour(self, text: str, colour: str | None, *, is_bold: bool = False) -> str:
        return click.style(text, fg=colour, bold=is_bold) if self._has_colour else text

    def state(self, state: str, width: int = 0) -> str:
        return self.colour(state.ljust(width), COLOURS.get(state))

    def time(self, iso: str | None) -> str:
        """Local time: the clock alone for today, with the date for another day."""
        if iso is None:
            return "-"
        at = datetime.fromisoformat(iso)
        with suppress(OverflowError):  # the last hours of the calendar are told in UTC
            at = at.astimezone()
        today = datetime.fromtimestamp(self._now_ms / 1000).astimezone()
        if at.date() == today.date():
            return at.strftime("%H:%M:%S")
        return at.strftime("%Y-%m-%d %H:%M")

    def ago(self, iso: str) -> str:
        """`in 3 d`, `12 s ago`."""
        ms = ms_of(iso) - self._now_ms
        return f"in {span_text(ms)}" if ms >= 0 else f"{span_text(-ms)} ago"

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Sequence[int] = (),
        paint: Callable[[int, int, str], str] | None = None,
    ) -> None:
        """Columns as wide as they need; the last is cut at the edge of the terminal.

        `paint` gets row, column and the padded text, and gives it with its colour.
        """
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        last = len(heads) - 1
        room = self.width - sum(widths[:-1]) - 2 * last
        widths[last] = max(len(heads[last]), min(widths[last], room))
        for number, row in enumerate([heads, *rows]):
            cells: list[str] = []
            for column, text in enumerate(row):
                text = cut(text, widths[column]) if column == last else text
                is_right = column in right
                text = text.rjust(widths[column]) if is_right else text.ljust(widths[column])
                text = text.rstrip() if column == last and not is_right else text
                if number == 0:
                    text = self.colour(text, None, is_bold=True)
                elif paint is not None:
                    text = paint(number - 1, column, text)
                cells.append(text)
            self.line("  ".join(cells).rstrip())


def ms_of(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)
