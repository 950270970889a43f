"""`parkade why ID`: one sentence why a ticket is not running."""

import click

from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.cli.source import ask

__all__ = ["why"]


@click.command()
@click.argument("ticket_id", metavar="ID")
@output_options
@click.pass_context
def why(ctx: click.Context, ticket_id: str, is_json: bool, is_jsonl: bool) -> None:
    """Says why a ticket is not running, or how it ended."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = ask(ctx.obj, "why", id=ticket_id)
    if not output.is_for_people:
        output.document(facts)
        return
    screen = Screen()
    change = ""
    if facts["next_change_at"] is not None:
        change = f" Next change {screen.time(facts['next_change_at'])}."
    screen.line(f"{clean(facts['text'])}.{change}")
