"""`parkade show ID`: everything about one ticket."""

from typing import Any

import click

from parkade.cli.screen import Output, Screen, clean, cut, json_text, ms_of, output_options
from parkade.cli.source import ask
from parkade.wording import bytes_text, span_text

__all__ = ["show"]

CONTENT_CHARS_MAX = 4_000
TRACEBACK_LINES_MAX = 40


@click.command()
@click.argument("ticket_id", metavar="ID")
@output_options
@click.pass_context
def show(ctx: click.Context, ticket_id: str, is_json: bool, is_jsonl: bool) -> None:
    """Shows all about a ticket, with its attempts.

    That is how it stands and why, its options, and its arguments or its result.

    A running engine shows dots in place of arguments that are annotated as Secret. The files alone
    do not tell which those are: without an engine everything is shown.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = ask(ctx.obj, "show", id=ticket_id)
    if output.is_for_people:
        _print(Screen(), facts)
    else:
        output.document(facts)


def _print(screen: Screen, facts: dict[str, Any]) -> None:
    ticket = facts["ticket"]
    _print_head(screen, ticket, facts.get("held"), facts.get("reason"))
    if facts["content_bytes"] is None:
        screen.line(f"  {facts['content_is']}  not kept")
    else:
        text = clean(json_text(facts["content"]))
        more = ""
        if len(text) > CONTENT_CHARS_MAX:
            more = f"  ({bytes_text(facts['content_bytes'])} in all: --json)"
        screen.line(f"  {facts['content_is']}  {cut(text, CONTENT_CHARS_MAX)}{more}")
    if facts["attempts"]:
        screen.line()
    for attempt in facts["attempts"]:
        screen.line(_attempt_line(screen, attempt))
    _print_traceback(screen, facts["attempts"])


def _print_head(
    screen: Screen, ticket: dict[str, Any], held: str | None, reason: str | None
) -> None:
    budget = ticket["max_attempts"]
    attempt = f"attempt {ticket['attempts']}" + ("" if budget is None else f" of {budget}")
    parts = [screen.colour(clean(ticket["task"]), None, is_bold=True)]
    if ticket["summary"]:
        parts.append(clean(ticket["summary"]))
    parts.append(screen.state(ticket["state"]))
    if ticket["attempts"]:
        parts.append(attempt)
    screen.line("  ".join(parts))
    facts = [f"id {ticket['id']}", f"created {screen.time(ticket['created_at'])}"]
    facts.append(f"due {screen.time(ticket['due_at'])} ({screen.ago(ticket['due_at'])})")
    if ticket["finished_at"] is not None:
        facts.append(f"ended {screen.time(ticket['finished_at'])}")
    facts.append(f"shard {ticket['shard']}")
    for name in ("key", "unique", "target"):
        if ticket[name] is not None:
            facts.append(f"{name} {clean(ticket[name])}")
    if ticket["priority"]:
        facts.append(f"priority {ticket['priority']}")
    facts += [f"{clean(name)}={clean(value)}" for name, value in ticket["tags"].items()]
    screen.line("  " + " · ".join(facts))
    if ticket["snoozes"]:
        screen.line(f"  snoozed {ticket['snoozes']} times")
    if held is not None:
        screen.line(f"  held: {clean(held)}")
    if reason is not None:
        verb = "resolved" if ticket["state"] == "done" else "cancelled"
        screen.line(f"  {verb}: {clean(reason)}")
    if ticket["dead_reason"] is not None:
        screen.line(f"  dead: {ticket['dead_reason']}")
    if ticket["maybe_applied"]:
        screen.line("  may have happened: nobody knows what an attempt of it did")
    if ticket["cancel_requested"]:
        screen.line("  was asked to cancel")


def _attempt_line(screen: Screen, attempt: dict[str, Any]) -> str:
    took = ""
    if attempt["ended_at"] is not None:
        took = f"+{span_text(ms_of(attempt['ended_at']) - ms_of(attempt['started_at']))}"
    error = ""
    if attempt["error_type"] is not None:
        error = f"{clean(attempt['error_type'])}: {clean(attempt['error'] or '')}"
    line = (
        f"  {attempt['number']:>3}  {screen.time(attempt['started_at'])}  {took:<10}  "
        f"{attempt['outcome']:<11}  {error}"
    )
    return cut(line.rstrip(), screen.width)


def _print_traceback(screen: Screen, attempts: list[dict[str, Any]]) -> None:
    """The last one that there is."""
    for attempt in reversed(attempts):
        if attempt["traceback"]:
            lines = attempt["traceback"].rstrip().splitlines()
            screen.line(f"\n  attempt {attempt['number']}:")
            if len(lines) > TRACEBACK_LINES_MAX:
                screen.line("    …")
            for line in lines[-TRACEBACK_LINES_MAX:]:
                screen.line(f"    {clean(line)}")
            return
