"""`parkade cancel`, `run-now`, `reschedule`, `submit`, `pause`, `resume`."""

import threading
from functools import partial
from typing import Any

import click
import msgspec

from parkade.cli import exits
from parkade.cli.listing import parse_tag
from parkade.cli.many import agree, all_pages, told
from parkade.cli.screen import Output, Screen, clean, json_text, output_options
from parkade.cli.source import ask, changing, is_engine_there
from parkade.cli.times import parse_span, parse_time
from parkade.clock import SystemClock
from parkade.durations import parse_duration_ms

__all__ = ["cancel", "pause", "reschedule", "resume", "run_now", "submit"]

POLL_MS_MIN, POLL_MS_MAX = 20, 1_000
WORDS = {
    "cancelled": "cancelled",
    "requested": "it runs; asked to cancel",
    "too_late": "too late: it has ended",
    "unknown": "there is no such ticket",
}


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--task", "-t", help="All of this task that have not ended.")
@click.option("--key", "-k", help="All with this key.")
@click.option("--tag", callback=parse_tag, metavar="K=V", help="All with this tag, if indexed.")
@click.option("--reason", default="", help="Why; it is shown with the tickets.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only tell what would be done.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@output_options
@click.pass_context
def cancel(
    ctx: click.Context, /, ids: tuple[str, ...], yes: bool, is_dry: bool, is_json: bool,
    is_jsonl: bool, **asked: Any,
) -> None:  # fmt: skip
    """Cancels tickets: by ids, or all that have not ended and fit.

    Pending ones end at once; running ones are asked to, and are not tried again.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    is_by_filter = any(asked[name] is not None for name in ("task", "key", "tag"))
    if bool(ids) == is_by_filter:
        raise click.UsageError("give ids, or some of --task, --key and --tag")
    if ids:
        _cancel_ids(ctx, output, list(dict.fromkeys(ids)), asked["reason"], yes=yes, is_dry=is_dry)
    else:
        _cancel_many(ctx, output, asked, yes=yes, is_dry=is_dry)


def _cancel_ids(
    ctx: click.Context, output: Output, ids: list[str], reason: str, *, yes: bool, is_dry: bool
) -> None:
    if is_dry:
        states = {one: ask(ctx.obj, "show", id=one)["ticket"]["state"] for one in ids}
        _say(output, {"states": states}, [f"{one}  is {state}" for one, state in states.items()])
        return
    if len(ids) > 1 and not yes:
        agree(ctx, "cancel", lambda: f"would cancel {len(ids)}")
    with changing(ctx.obj) as change:
        facts = change("cancel", ids=ids, reason=reason)
    outcomes: dict[str, str] = facts["outcomes"]
    _say(output, facts, [f"{clean(one)}  {WORDS[code]}" for one, code in outcomes.items()])
    if "unknown" in outcomes.values():
        ctx.exit(exits.NOT_FOUND)
    if "too_late" in outcomes.values():
        ctx.exit(exits.NEGATIVE)


def _cancel_many(
    ctx: click.Context, output: Output, asked: dict[str, Any], *, yes: bool, is_dry: bool
) -> None:
    def plan() -> dict[str, Any]:
        return all_pages(partial(ask, ctx.obj, "plan_cancel"), asked)

    if is_dry:
        facts = plan()
        _say(output, facts, [told(facts, "would cancel") + ". Run again without --dry-run."])
        return
    if not yes:
        agree(ctx, "cancel", lambda: told(plan(), "would cancel"))
    with changing(ctx.obj) as change:
        facts = all_pages(partial(change, "cancel_many"), asked)
    _say(output, facts, [told(facts, "cancelled")])


@click.command("run-now")
@click.argument("ticket_id", metavar="ID")
@output_options
@click.pass_context
def run_now(ctx: click.Context, ticket_id: str, is_json: bool, is_jsonl: bool) -> None:
    """Makes a pending ticket due now."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    _move(ctx, output, {"id": ticket_id, "delay": 0, "at": None})


@click.command()
@click.argument("ticket_id", metavar="ID")
@click.option(
    "--in", "delay", callback=parse_span, metavar="SPAN", help="Due after this time, like 10m."
)
@click.option(
    "--at", callback=parse_time, metavar="ISO", help="Due then, like 2027-01-31T09:00:00+01:00."
)
@output_options
@click.pass_context
def reschedule(
    ctx: click.Context,
    ticket_id: str,
    delay: str | None,
    at: str | None,
    is_json: bool,
    is_jsonl: bool,
) -> None:
    """Gives a pending ticket another due time."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    if (delay is None) == (at is None):
        raise click.UsageError("give --in or --at, one of them")
    _move(ctx, output, {"id": ticket_id, "delay": delay, "at": at})


def _move(ctx: click.Context, output: Output, asked: dict[str, Any]) -> None:
    with changing(ctx.obj) as change:
        facts = change("reschedule", **asked)
    ticket = facts["ticket"]
    if facts["is_changed"]:
        text = f"{ticket['id']}  due {Screen().ago(ticket['due_at'])}"
    else:
        text = f"{ticket['id']}  is {ticket['state']}: only what waits is given another time"
    _say(output, facts, [text])
    if not facts["is_changed"]:
        ctx.exit(exits.NEGATIVE)


@click.command()
@click.argument("task", metavar="NAME")
@click.argument("payload", metavar="[JSON]", default="{}")
@click.option(
    "--in", "delay", callback=parse_span, metavar="SPAN", help="Due after this time, like 10m."
)
@click.option(
    "--at", callback=parse_time, metavar="ISO", help="Due then, like 2027-01-31T09:00:00+01:00."
)
@click.option("--unique", help="Answers with the ticket that has this name already, if any.")
@click.option("--wait", metavar="SPAN", help="Wait so long for its end, and print the result.")
@output_options
@click.pass_context
def submit(
    ctx: click.Context, /, payload: str, wait: str | None, is_json: bool, is_jsonl: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Submits a ticket of a task by its name.

    Its arguments are a JSON object, like '{"name": "eve"}'. The engine that runs knows the tasks,
    so there must be one.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    wait_ms = None if wait is None else parse_duration_ms(wait, what="--wait")
    try:
        asked["payload"] = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        text = f"""not JSON: {error}. Use an object, like '{{"name": "eve"}}'"""
        raise click.BadParameter(text, param_hint="JSON") from error
    if not isinstance(asked["payload"], dict):
        raise click.BadParameter("use an object: the arguments by their names", param_hint="JSON")
    if not is_engine_there(ctx.obj):
        text = f"no engine runs on {ctx.obj}, and only the application's knows its tasks"
        click.echo(f"parkade: {text}. Start it, and submit again", err=True)
        ctx.exit(exits.REFUSED)
    with changing(ctx.obj) as change:
        facts = change("submit", **asked)
    if wait_ms is None:
        known = "" if facts["created"] else "  was there already"
        _say(output, facts, [f"{facts['id']}{known}"])
    else:
        _await_end(ctx, output, facts["id"], wait_ms)


def _await_end(ctx: click.Context, output: Output, ticket_id: str, wait_ms: int) -> None:
    clock, nobody = SystemClock(), threading.Event()
    until_ms, pause_ms = clock.monotonic_ms() + wait_ms, POLL_MS_MIN
    while True:
        facts = ask(ctx.obj, "show", id=ticket_id)
        ticket, left_ms = facts["ticket"], until_ms - clock.monotonic_ms()
        if ticket["finished_at"] is not None or left_ms <= 0:
            break
        clock.wait(nobody, min(pause_ms, left_ms))
        pause_ms = min(2 * pause_ms, POLL_MS_MAX)
    if ticket["state"] == "done":
        _say(output, facts, [json_text(facts["content"])])
        return
    _say(output, facts, [])
    if ticket["finished_at"] is None:
        click.echo(f"parkade: {ticket_id} is {ticket['state']}: no result in time", err=True)
        ctx.exit(exits.TIMED_OUT)
    error = "" if ticket["error"] is None else f": {clean(ticket['error'])}"
    click.echo(f"parkade: {ticket_id} is {ticket['state']}{error}", err=True)
    ctx.exit(exits.NEGATIVE)


@click.command()
@click.option("--task", "-t", help="Nothing more of this task starts.")
@click.option("--target", help="Nothing more with this target starts.")
@click.option(
    "--until", callback=parse_time, metavar="ISO", help="Until then; else until it is resumed."
)
@click.option("--reason", default="", help="Why; it is told of what waits.")
@click.pass_context
def pause(ctx: click.Context, /, **asked: Any) -> None:
    """Holds a task or a target. What runs goes on."""
    about, facts = _turn(ctx, "pause", asked)
    Screen().line(f"paused {about}")
    if not facts["is_known"]:
        text = "nobody knows a task of this name: no ticket has it, and no engine that runs here"
        click.echo(f"parkade: {text}", err=True)


@click.command()
@click.option("--task", "-t", help="The task that was paused.")
@click.option("--target", help="The target that was paused.")
@click.pass_context
def resume(ctx: click.Context, /, **asked: Any) -> None:
    """Takes a pause back."""
    about, facts = _turn(ctx, "resume", asked)
    Screen().line(f"resumed {about}" if facts["was_paused"] else f"{about} was not paused")


def _turn(ctx: click.Context, verb: str, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What was turned, and what the engine says of it."""
    if (asked["task"] is None) == (asked["target"] is None):
        raise click.UsageError("give --task or --target, one of them")
    with changing(ctx.obj) as change:
        facts = change(verb, **asked)
    kind = "target" if asked["task"] is None else "task"
    return f"{kind} {clean(asked[kind])}", facts


def _say(output: Output, facts: dict[str, Any], lines: list[str]) -> None:
    if not output.is_for_people:
        output.document(facts)
        return
    for line in lines:
        Screen().line(line)
