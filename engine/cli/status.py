"""`parkade status`: one screen."""

from typing import Any

import click

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, ms_of, output_options
from parkade.cli.source import ask
from parkade.wording import bytes_text, count_text, span_text

__all__ = ["status"]

TASKS_MAX = 20


@click.command()
@output_options
@click.pass_context
def status(ctx: click.Context, is_json: bool, is_jsonl: bool) -> None:
    """Counts, storage and owner on one screen."""
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = ask(ctx.obj, "status")
    if output.is_for_people:
        _print(Screen(), facts)
    else:
        output.document(facts)
    if any(shard["status"] == "refused" for shard in facts["storage"]):
        ctx.exit(exits.DAMAGED)


def _print(screen: Screen, facts: dict[str, Any]) -> None:
    storage, states = facts["storage"], facts["states"]
    stored = sum(shard["store_bytes"] + shard["journal_bytes"] for shard in storage)
    screen.line(
        f"{clean(facts['directory'])}   format {facts['format']} · "
        f"{_count(facts['shards'], 'shard')} · {bytes_text(stored, binary=True)} · {_owner(facts)}"
    )
    screen.line()
    width = max(len(count_text(count)) for count in states.values())
    for state, count in states.items():
        note = ""
        if state == "ready" and count:
            note = f"   oldest {span_text(facts['oldest_ready_age_ms'])}"
        if state == "dead" and count:
            note = "   parkade dead groups"
        if count or state in ("ready", "running", "scheduled", "dead", "done"):
            screen.line(f"  {screen.state(state, 9)}  {count_text(count):>{width}}{note}")
    _print_tasks(screen, facts["tasks"])
    for shard in storage:
        if shard["status"] != "open":
            mark = screen.colour(shard["status"].upper(), "red")
            screen.line(f"\n  shard {shard['shard']:02d} {mark}  {clean(shard['reason'] or '')}")


def _print_tasks(screen: Screen, tasks: dict[str, dict[str, int]]) -> None:
    if not tasks:
        return
    by_size = sorted(tasks.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    rows = [
        [
            f"  {clean(task)}",
            count_text(counts.get("scheduled", 0)),
            count_text(counts.get("running", 0)),
            count_text(counts.get("done", 0)),
            count_text(counts.get("dead", 0)),
        ]
        for task, counts in by_size[:TASKS_MAX]
    ]
    screen.line()
    screen.table(["  task", "pending", "running", "done", "dead"], rows, right=(1, 2, 3, 4))
    if len(by_size) > TASKS_MAX:
        screen.line(f"  and {len(by_size) - TASKS_MAX} more: parkade status --json")


def _owner(facts: dict[str, Any]) -> str:
    owner = facts["owner"]
    if owner is None:
        return "no engine answers: read from the files"
    up_ms = max(0, ms_of(facts["as_of"]) - ms_of(owner["started_at"]))
    return f"owned by pid {owner['pid']} ({clean(owner['title'])}, up {span_text(up_ms)})"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count_text(count)} {what}s"
