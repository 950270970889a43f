"""`parkade breaker` and `parkade limit`: what operators turn beside pauses."""

from typing import Any

import click

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.cli.source import ask, ask_owner, changing, is_engine_there
from parkade.cli.status import breaker_text
from parkade.cli.times import Rate, parse_rate, parse_span
from parkade.wording import count_text, span_text

__all__ = ["breaker", "limit"]


@click.group()
def breaker() -> None:
    """Looks at breakers, opens and closes them."""


@breaker.command("ls")
@output_options
@click.pass_context
def list_breakers(ctx: click.Context, is_json: bool, is_jsonl: bool) -> None:
    """Lists breakers; without an engine those that are not closed."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = ask(ctx.obj, "status")
    if facts["breakers"] is None:
        click.echo(f"parkade: breakers are not known: {facts['house_error']}", err=True)
        ctx.exit(exits.DAMAGED if facts["owner"] is None else exits.NEGATIVE)
    names: list[str] = facts["closed_breakers"] or []
    closed = [{"name": name, "state": "closed"} for name in names]
    if not output.is_for_people:
        found: list[dict[str, Any]] = [*facts["breakers"], *closed]
        output.document({"breakers": found}, lines=found)
        return
    screen = Screen()
    holds: list[dict[str, Any]] = facts["held"] or []
    held = {one["name"]: one["count"] for one in holds if one["kind"] == "breaker"}
    for one in facts["breakers"]:
        count = f", holds {count_text(held[one['name']])}" if one["name"] in held else ""
        screen.line(breaker_text(screen, one) + count)
    for one in closed:
        screen.line(f"{clean(one['name'])} closed")
    if not facts["breakers"] and not closed:
        screen.line("no breaker is open" if facts["owner"] is None else "no breaker is known")


@breaker.command("open")
@click.argument("name")
@click.option("--for", "span", callback=parse_span, metavar="SPAN", help="Else until it is closed.")
@click.option("--reason", default="", help="Why; it is told of what waits.")
@click.pass_context
def open_breaker(ctx: click.Context, name: str, span: str | None, reason: str) -> None:
    """Starts nothing more against its target; when the time is over, probes go first."""
    with changing(ctx.obj) as change:
        change("breaker.open", breaker=name, span=span, reason=reason)
    Screen().line(f"opened breaker {clean(name)}")


@breaker.command("close")
@click.argument("name")
@click.pass_context
def close_breaker(ctx: click.Context, name: str) -> None:
    """Lets attempts through again, whatever opened it."""
    with changing(ctx.obj) as change:
        facts = change("breaker.close", breaker=name)
    about = f"breaker {clean(name)}"
    Screen().line(f"closed {about}" if facts["was_open"] else f"{about} was not open")


@click.group()
def limit() -> None:
    """Looks at limits, and sets them in the place of the code's.

    The engine must run: the limits are in its code.
    """


@limit.command("ls")
@output_options
@click.pass_context
def list_limits(ctx: click.Context, is_json: bool, is_jsonl: bool) -> None:
    """Lists every limit of a registered task, of a target met so far, and those that were set."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = _of_engine(ctx, "limit.ls")
    if not output.is_for_people:
        output.document(facts, lines=facts["limits"])
        return
    if not facts["limits"]:
        Screen().line("nothing is limited")
        return
    rows = [_row(one) for one in facts["limits"]]
    Screen().table(["scope", "running", "concurrency", "rate", "set"], rows, right=(1, 2, 3))


def _row(one: dict[str, Any]) -> list[str]:
    rate = "-"
    if one["rate"] is not None:
        starts, span_ms = one["rate"]
        rate = f"{count_text(starts)} in {span_text(span_ms)}"
    return [
        clean(one["scope"]),
        count_text(one["running"]),
        "-" if one["concurrency"] is None else count_text(one["concurrency"]),
        rate,
        "by an operator" if one["is_overridden"] else "in code",
    ]


@limit.command("set")
@click.argument("scope")
@click.option("--concurrency", type=click.IntRange(min=1), help="So many run at once.")
@click.option(
    "--rate", callback=parse_rate, metavar="N/SPAN", help="So many start in a span: 50/s, 3/1m."
)
@click.pass_context
def set_limit(ctx: click.Context, scope: str, concurrency: int | None, rate: Rate | None) -> None:
    """Puts numbers in the place of all that the code says for SCOPE: task:NAME, target:NAME or
    key:NAME. They outlive the engine, until the code says something else."""
    if concurrency is None and rate is None:
        raise click.UsageError("give --concurrency or --rate, or both")
    pair = None if rate is None else list(rate)
    _of_engine(ctx, "limit.set", scope=scope, concurrency=concurrency, rate=pair)
    Screen().line(f"set {clean(scope)}")


@limit.command("reset")
@click.argument("scope")
@click.pass_context
def reset_limit(ctx: click.Context, scope: str) -> None:
    """Takes back what was set for SCOPE: what the code says holds again."""
    _of_engine(ctx, "limit.set", scope=scope)
    Screen().line(f"reset {clean(scope)}")


def _of_engine(ctx: click.Context, name: str, **args: Any) -> Any:
    if not is_engine_there(ctx.obj):
        text = f"no engine runs on {ctx.obj}, and the limits are in the application's code"
        click.echo(f"parkade: {text}. Start it, and try again", err=True)
        ctx.exit(exits.REFUSED)
    return ask_owner(ctx.obj, name, **args)
