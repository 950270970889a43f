"""`parkade ls`: tickets, newest first."""

from typing import Any

import click

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.cli.source import ask
from parkade.cli.times import parse_time
from parkade.limits import FIND_LIMIT_MAX
from parkade.wording import count_text

__all__ = ["ls", "parse_tag", "print_page"]

STATES = ("scheduled", "ready", "running", "done", "dead", "cancelled", "expired")
KEY_CHARS_MAX = 24


def parse_tag(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    """`campaign=may`."""
    if value is None:
        return None
    name, separator, text = value.partition("=")
    if not name or not separator:
        raise click.BadParameter(f"{value!r} is no tag. Use its name and value, like campaign=may")
    return [name, text]


@click.command()
@click.option("--state", "-s", type=click.Choice(STATES), help="Only tickets in this state.")
@click.option("--task", "-t", help="Only tickets of this task.")
@click.option("--key", "-k", help="Only tickets with this key.")
@click.option("--target", help="Only tickets with this target.")
@click.option(
    "--tag", callback=parse_tag, metavar="K=V", help="Only tickets with this tag, if it is indexed."
)
@click.option(
    "--due-before",
    callback=parse_time,
    metavar="ISO",
    help="Only tickets that are due before this time.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, FIND_LIMIT_MAX),
    default=50,
    show_default=True,
    help="How many at most.",
)
@click.option("--cursor", help="Where the page before ended: its `next`.")
@click.option("--fail-empty", is_flag=True, help="Exit with 3 when there is none.")
@output_options
@click.pass_context
def ls(
    ctx: click.Context, /, fail_empty: bool, is_json: bool, is_jsonl: bool, **asked: Any
) -> None:
    """Lists tickets, newest first."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    page = ask(ctx.obj, "ls", **asked)
    if output.is_for_people:
        print_page(Screen(), page)
    else:
        output.document(page, lines=page["items"])
    if fail_empty and not page["items"]:
        ctx.exit(exits.NOT_FOUND)


def print_page(screen: Screen, page: dict[str, Any]) -> None:
    """A page of tickets, and how to go on."""
    items = page["items"]
    if items:
        rows = [_row(screen, ticket) for ticket in items]
        screen.table(
            ["id", "task", "state", "when", "attempts", "key", "note"],
            rows,
            right=(4,),
            paint=lambda row, column, text: (
                screen.state(items[row]["state"], len(text)) if column == 2 else text
            ),
        )
    elif page["complete"]:
        screen.line("no tickets")
    if not page["complete"]:
        screen.line(f"\nlooked at {count_text(page['scanned'])} tickets, newest first, so far")
    if page["next"] is not None:
        screen.line(f"\nthere may be more: --cursor {page['next']}")


def _row(screen: Screen, ticket: dict[str, Any]) -> list[str]:
    budget = ticket["max_attempts"]
    attempts = str(ticket["attempts"]) if budget is None else f"{ticket['attempts']}/{budget}"
    key = clean(ticket["key"] or "")
    return [
        ticket["id"],
        clean(ticket["task"]),
        ticket["state"],
        _when(screen, ticket),
        attempts,
        key if len(key) <= KEY_CHARS_MAX else key[: KEY_CHARS_MAX - 1] + "…",
        _note(ticket),
    ]


def _when(screen: Screen, ticket: dict[str, Any]) -> str:
    """When it ended; since when it runs or is due; or until when it sleeps."""
    if ticket["finished_at"] is not None:
        return screen.ago(ticket["finished_at"])
    if ticket["state"] == "running":
        return screen.ago(ticket["started_at"])
    return screen.ago(ticket["due_at"])


def _note(ticket: dict[str, Any]) -> str:
    parts: list[str] = []
    if ticket["dead_reason"] is not None:
        parts.append(ticket["dead_reason"])
    if ticket["maybe_applied"]:
        parts.append("may have happened")
    if ticket["error"] is not None and ticket["state"] != "done":
        parts.append(clean(ticket["error"]))
    elif ticket["summary"]:
        parts.append(clean(ticket["summary"]))
    return " · ".join(parts)
