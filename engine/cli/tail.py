"""`parkade tail`: what happens, as it happens."""

import threading
from typing import Any

import click

from parkade.cli.screen import COLOURS, Screen, clean, json_text
from parkade.cli.source import CHANGE_MS_MAX, LOOK_MS_MAX, client_of
from parkade.clock import SystemClock
from parkade.control import ControlError

__all__ = ["tail"]

POLL_MS = 250
KIND_CHARS = 14
GONE = ("unreachable", "broken")


@click.command()
@click.option("--kind", "-k", "kinds", multiple=True, help="Only these, like dead,retrying.")
@click.option("--task", "-t", help="Only of this task.")
@click.option(
    "--since",
    type=click.IntRange(0),
    help="First what the engine still knows above this number; 0: all it knows.",
)
@click.option("--jsonl", "is_jsonl", is_flag=True, help="One JSON document per line.")
@click.pass_context
def tail(
    ctx: click.Context, kinds: tuple[str, ...], task: str | None, since: int | None, is_jsonl: bool
) -> None:
    """Follows the events of a running engine.

    It ends when that stops, or with Ctrl-C.
    """
    client = client_of(ctx.obj, timeout_ms=LOOK_MS_MAX)
    wanted = [one.strip() for kind in kinds for one in kind.split(",") if one.strip()]
    screen, clock, never = Screen(), SystemClock(), threading.Event()
    is_following = False
    while True:
        try:
            page = client.call("tail", kinds=wanted, task=task, since=since)
        except ControlError as error:
            if is_following and error.code in (*GONE, "PK-206"):
                click.echo("parkade: the engine has stopped", err=True)
                return
            if error.code in GONE:
                text = f"{error}. Only a running engine tells events: start it, or see the status"
                raise ControlError(error.code, text) from error
            raise
        is_following, client.timeout_ms = True, CHANGE_MS_MAX
        if page["dropped"]:
            click.echo(f"parkade: {page['dropped']} events were missed", err=True)
        for event in page["events"]:
            if is_jsonl:
                click.echo(json_text(event))
            else:
                screen.line(_line(screen, event))
        since = page["next"]
        if not page["events"]:
            clock.wait(never, POLL_MS)


def _line(screen: Screen, event: dict[str, Any]) -> str:
    kind = screen.colour(event["kind"].ljust(KIND_CHARS), COLOURS.get(event["kind"]))
    about = " ".join(clean(part) for part in (event["ticket_id"], event["task"]) if part)
    details = " ".join(
        f"{name}={clean(value)}" for name, value in event["data"].items() if value not in (None, "")
    )
    return f"{screen.time(event['at'])}  {kind}  {about}  {details}".rstrip()
