"""`parkade dead`: the dead letter office from a terminal."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_args

import click
import msgspec

from parkade.cli import exits
from parkade.cli.listing import print_page
from parkade.cli.many import agree, all_pages, told
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.cli.source import ask, changing
from parkade.cli.times import Rate, parse_rate, parse_span, parse_time
from parkade.durations import parse_duration_ms
from parkade.errors import DeadReason
from parkade.limits import FIND_LIMIT_MAX
from parkade.shard.grouping import GROUP_BYTES, shape_of
from parkade.wording import count_text, span_text

__all__ = ["dead"]

F = TypeVar("F", bound=Callable[..., Any])
KEY_CHARS = 2 * GROUP_BYTES
GROUPS_MAX = FIND_LIMIT_MAX


@click.group()
def dead() -> None:
    """Lists dead tickets, revives, resolves and drops them."""


@dead.command()
@click.option(
    "-n", "--limit", type=click.IntRange(1, GROUPS_MAX), default=20, show_default=True,
    help="How many at most.",
)  # fmt: skip
@output_options
@click.pass_context
def groups(ctx: click.Context, limit: int, is_json: bool, is_jsonl: bool) -> None:
    """Counts those that died alike, the most first."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = ask(ctx.obj, "dead.groups", limit=limit)
    if not output.is_for_people:
        output.document(facts, lines=facts["groups"])
        return
    screen = Screen()
    if not facts["groups"]:
        screen.line("nothing is dead")
        return
    rows = [_group_row(screen, group) for group in facts["groups"]]
    heads = ["count", "task", "error", "first", "last", "group", "message"]
    screen.table(heads, rows, right=(0,))


def _group_row(screen: Screen, group: dict[str, Any]) -> list[str]:
    doubt = "may have happened: " if group["error_type"] == "Ambiguous" else ""
    return [
        count_text(group["count"]),
        clean(group["task"]),
        clean(group["error_type"] or "-"),
        screen.ago(group["first_at"]),
        screen.ago(group["last_at"]),
        group["key"],
        doubt + clean(shape_of(group["sample"])),
    ]


@dead.command("ls")
@click.option("--group", "-g", help="Only those of this group; the beginning of its key will do.")
@click.option("--task", "-t", help="Only tickets of this task.")
@click.option("--reason", type=click.Choice(get_args(DeadReason)), help="Only what died of this.")
@click.option("--error-type", help="Only those whose last error was of this type.")
@click.option(
    "--since", callback=parse_time, metavar="ISO", help="Only what died at this time or later."
)
@click.option(
    "--until", callback=parse_time, metavar="ISO", help="Only what died before this time."
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, FIND_LIMIT_MAX), default=50, show_default=True,
    help="How many at most.",
)  # fmt: skip
@click.option("--cursor", help="Where the page before ended: its `next`.")
@click.option("--fail-empty", is_flag=True, help="Exit with 3 when there is none.")
@output_options
@click.pass_context
def list_dead(
    ctx: click.Context, /, fail_empty: bool, is_json: bool, is_jsonl: bool, **asked: Any
) -> None:
    """Lists dead tickets, newest first."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    asked["group"] = _whole_key(ctx.obj, asked["group"])
    page = ask(ctx.obj, "dead.ls", **asked)
    if output.is_for_people:
        print_page(Screen(), page)
    else:
        output.document(page, lines=page["items"])
    if fail_empty and not page["items"]:
        ctx.exit(exits.NOT_FOUND)


def _which_options(command: F) -> F:
    """Adds which tickets, and how a change of many is confirmed."""
    for option in (
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--dry-run", "is_dry", is_flag=True, help="Only tell what would be done."),
        click.option("--task", "-t", help="All of this task."),
        click.option("--group", "-g", help="All of this group; the beginning of its key will do."),
        click.argument("ids", nargs=-1, metavar="[ID]..."),
    ):
        command = option(command)
    return output_options(command)


@dead.command()
@_which_options
@click.option(
    "--in", "delay", callback=parse_span, metavar="SPAN", help="Due after this time, like 10m."
)
@click.option(
    "--rate", callback=parse_rate, metavar="N/SPAN",
    help="So many in a span, the oldest first, like 50/s.",
)  # fmt: skip
@click.option("--keep-attempts", is_flag=True, help="Without a fresh budget of attempts.")
@click.option("--accept-ambiguous", is_flag=True, help="Also those that may have happened.")
@click.pass_context
def revive(
    ctx: click.Context, /, rate: Rate | None, yes: bool, is_dry: bool, is_json: bool,
    is_jsonl: bool, **asked: Any,
) -> None:  # fmt: skip
    """Makes dead tickets pending again: by ids, or all of a group or a task."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    asked["rate"] = None if rate is None else list(rate)
    _change(ctx, output, "revive", asked, yes=yes, is_dry=is_dry, rate=rate)


@dead.command()
@_which_options
@click.pass_context
def drop(
    ctx: click.Context, /, yes: bool, is_dry: bool, is_json: bool, is_jsonl: bool, **asked: Any
) -> None:
    """Deletes dead tickets for ever: by ids, or all of a group or a task."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    _change(ctx, output, "drop", asked, yes=yes, is_dry=is_dry)


@dead.command()
@click.argument("ticket_id", metavar="ID")
@click.option("--result", metavar="JSON", help="What it came to; without it: nothing.")
@click.option("--note", required=True, help="How that was found out. It is shown with the ticket.")
@output_options
@click.pass_context
def resolve(
    ctx: click.Context,
    ticket_id: str,
    result: str | None,
    note: str,
    is_json: bool,
    is_jsonl: bool,
) -> None:
    """Makes a dead ticket done: somebody has checked that it happened."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    try:
        value = None if result is None else msgspec.json.decode(result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--result") from error
    with changing(ctx.obj) as change:
        facts = change("dead.resolve", id=ticket_id, result=value, note=note)
    if not output.is_for_people:
        output.document(facts)
        return
    unchecked = "" if facts["is_checked"] else "; no code was there to check the result"
    Screen().line(f"resolved {ticket_id}{unchecked}")


def _change(
    ctx: click.Context, output: Output, verb: str, asked: dict[str, Any], *, yes: bool,
    is_dry: bool, rate: Rate | None = None,
) -> None:  # fmt: skip
    """Plans where that was asked for or somebody has to agree first; then does it."""
    if bool(asked["ids"]) + (asked["group"] is not None) + (asked["task"] is not None) != 1:
        raise click.UsageError("give ids, or --group, or --task: one of them")
    asked["ids"] = list(asked["ids"])
    asked["group"] = _whole_key(ctx.obj, asked["group"])
    is_many = len(asked["ids"]) != 1
    if is_dry or (is_many and not yes):

        def plan() -> dict[str, Any]:
            return all_pages(partial(ask, ctx.obj, f"dead.plan_{verb}"), asked)

        if is_dry:
            _tell(output, plan(), f"would {verb}", rate, ". Run again without --dry-run.")
            return
        agree(ctx, verb, lambda: _told(plan(), f"would {verb}", rate))
    with changing(ctx.obj) as change:
        done = all_pages(partial(change, f"dead.{verb}"), asked)
    _tell(output, done, {"revive": "revived", "drop": "dropped"}[verb], rate)
    if output.is_for_people and "ambiguous" in done["skipped"]:
        text = "what may have happened is revived with --accept-ambiguous, or resolved"
        click.echo(f"parkade: {text}", err=True)
    if done["matched"] and not done["changed"]:
        ctx.exit(exits.NEGATIVE)


def _tell(
    output: Output, facts: dict[str, Any], what: str, rate: Rate | None, advice: str = ""
) -> None:
    if output.is_for_people:
        Screen().line(_told(facts, what, rate) + advice)
    else:
        output.document(facts)


def _told(facts: dict[str, Any], what: str, rate: Rate | None) -> str:
    """`would revive 207, skip 3 (3 ambiguous), about 5 s at 50/s`."""
    text = told(facts, what)
    if rate is not None and facts["changed"]:
        count, span = rate
        took_ms = facts["matched"] * parse_duration_ms(span, what="rate") // count
        text += f", about {span_text(took_ms)} at {count}/{span.removeprefix('1')}"
    return text


def _whole_key(directory: str, group: str | None) -> str | None:
    """The key of the one group that begins so."""
    if group is None or len(group) >= KEY_CHARS:
        return group
    known: list[str] = [
        one["key"] for one in ask(directory, "dead.groups", limit=GROUPS_MAX)["groups"]
    ]
    found = [key for key in known if key.startswith(group)]
    if len(found) != 1:
        how_many = "no group" if not found else f"{len(found)} groups"
        raise click.BadParameter(
            f"{how_many} of the {count_text(len(known))} largest begins with {group!r}. "
            "See parkade dead groups",
            param_hint="--group",
        )
    return found[0]
