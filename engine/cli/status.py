"""`parkade status`: one screen."""

from typing import Any

import click

from parkade.cli import exits
from parkade.cli.screen import Output, Screen, clean, ms_of, output_options
from parkade.cli.source import ask
from parkade.status_facts import AMBIGUOUS_MAX, DEAD_GROUPS_MAX
from parkade.wording import bytes_text, count_text, span_text

__all__ = ["breaker_text", "status"]

TASKS_MAX = 20
HOLDS_MAX = 5
PLACES = {"thread": "threads", "process": "processes"}


@click.command()
@output_options
@click.pass_context
def status(ctx: click.Context, is_json: bool, is_jsonl: bool) -> None:
    """One screen: owner, counts, what is held, and storage.

    Pauses and open breakers too. Exits with 5 when a part is refused or cannot be read.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    facts = ask(ctx.obj, "status")
    if output.is_for_people:
        _print(Screen(), facts)
    else:
        output.document(facts)
    # A running engine has read its house; of that one it means that it could not be written.
    is_house_damaged = facts["house_error"] and facts["owner"] is None
    if is_house_damaged or any(shard["status"] == "refused" for shard in facts["storage"]):
        ctx.exit(exits.DAMAGED)


def _print(screen: Screen, facts: dict[str, Any]) -> None:
    storage = facts["storage"]
    stored = sum(shard["store_bytes"] + shard["journal_bytes"] for shard in storage)
    screen.line(
        f"{clean(facts['directory'])}   format {facts['format']} · "
        f"{_count(facts['shards'], 'shard')} · {bytes_text(stored, binary=True)} · {_owner(facts)}"
    )
    screen.line()
    _print_states(screen, facts)
    _print_tasks(screen, facts["tasks"])
    _print_house(screen, facts)
    _print_disk(screen, facts)
    for shard in storage:
        if shard["status"] != "open":
            mark = screen.colour(shard["status"].upper(), "red")
            screen.line(f"  shard {shard['shard']:02d} {mark}  {clean(shard['reason'] or '')}")


def _print_states(screen: Screen, facts: dict[str, Any]) -> None:
    states = facts["states"]
    width = max(len(count_text(count)) for count in states.values())
    notes = {
        "ready": _ready_note, "running": _running_note, "scheduled": _scheduled_note,
        "dead": _dead_note,
    }  # fmt: skip
    for state, count in states.items():
        if count or state in ("ready", "running", "scheduled", "dead", "done"):
            note = notes[state](facts) if state in notes else ""
            line = f"  {screen.state(state, 9)}  {count_text(count):>{width}}   {note}"
            screen.line(line.rstrip())


def _ready_note(facts: dict[str, Any]) -> str:
    if not facts["states"]["ready"]:
        return ""
    parts = [f"oldest {span_text(facts['oldest_ready_age_ms'])}"]
    if facts["runs_nothing"]:
        parts.append(f"held: {facts['runs_nothing']}")
    elif facts["held"]:
        held = [f"{_hold(one)} {count_text(one['count'])}" for one in facts["held"][:HOLDS_MAX]]
        more = len(facts["held"]) - HOLDS_MAX
        if more > 0:
            held.append(f"and {count_text(more)} more")
        count = sum(one["count"] for one in facts["held"])
        cut = " or more" if facts["held_is_cut"] else ""
        parts.append(f"held {count_text(count)}{cut} ({', '.join(held)})")
    return "   ".join(parts)


def _hold(hold: dict[str, Any]) -> str:
    """What holds, in the words of `parkade why`."""
    kind, name = hold["kind"], clean(hold["name"])
    match kind:
        case "handler":
            return f"no task {name}"
        case "place":
            return "no processes"
        case "pause":
            return f"paused {name}"
        case _:
            return f"{kind} {name}"


def _running_note(facts: dict[str, Any]) -> str:
    if facts["places"] is None:
        return ""
    parts = [
        f"{PLACES.get(kind, kind)} {count_text(place['used'])}/{count_text(place['of'])}"
        for kind, place in facts["places"].items()
    ]
    if facts["zombies"]:
        parts.append(f"zombies {count_text(facts['zombies'])}")
    return " · ".join(parts)


def _scheduled_note(facts: dict[str, Any]) -> str:
    if not facts["states"]["scheduled"]:
        return ""
    as_of_ms = ms_of(facts["as_of"])
    if facts["next_due_at"]:
        return f"next in {span_text(max(0, ms_of(facts['next_due_at']) - as_of_ms))}"
    if facts["none_due_before"]:
        return f"none within {span_text(ms_of(facts['none_due_before']) - as_of_ms)}"
    return ""


def _dead_note(facts: dict[str, Any]) -> str:
    groups = facts["dead_groups"]
    if not facts["states"]["dead"]:
        return ""
    if groups is None:
        return "parkade dead groups"
    more = " or more" if groups == DEAD_GROUPS_MAX else ""
    return f"{_count(groups, 'group')}{more}{_ambiguous_note(facts)}: parkade dead groups"


def _ambiguous_note(facts: dict[str, Any]) -> str:
    count = facts["ambiguous"]
    if not count:
        return ""
    more = " or more" if count == AMBIGUOUS_MAX else ""
    return f", {count_text(count)}{more} ambiguous"


def _print_house(screen: Screen, facts: dict[str, Any]) -> None:
    screen.line()
    if facts["house_error"]:
        mark = screen.colour("FAILS", "red")
        screen.line(f"  house      {mark}  {clean(facts['house_error'])}")
        return
    for breaker in facts["breakers"]:
        screen.line(f"  breaker    {breaker_text(screen, breaker)}")
    closed: list[str] = facts["closed_breakers"] or []
    if closed:
        more = f" and {len(closed) - HOLDS_MAX} more" if len(closed) > HOLDS_MAX else ""
        names = ", ".join(map(clean, closed[:HOLDS_MAX]))
        screen.line(f"  closed     {_count(len(closed), 'breaker')}: {names}{more}")
    for pause in facts["pauses"]:
        kind, _, name = pause["scope"].partition(":")
        until = f" until {screen.time(pause['until'])}" if pause["until"] else ""
        reason = f" ({clean(pause['reason'])})" if pause["reason"] else ""
        screen.line(f"  paused     {kind} {clean(name)}{until}{reason}")


def breaker_text(screen: Screen, breaker: dict[str, Any]) -> str:
    """A breaker that is not closed, in a line."""
    state = screen.colour(breaker["state"].replace("_", " ").upper(), "red")
    cause = f" ({clean(breaker['cause'])})" if breaker["cause"] else ""
    next_at = breaker["next_probe_at"]
    probe = f", probe {screen.ago(next_at)}" if next_at else ""
    since = f" since {screen.time(breaker['opened_at'])}"
    return f"{clean(breaker['name'])} {state}{since}{cause}{probe}"


def _print_disk(screen: Screen, facts: dict[str, Any]) -> None:
    storage = facts["storage"]
    stores = sum(shard["store_bytes"] for shard in storage)
    journals = sum(shard["journal_bytes"] for shard in storage)
    parts = [f"stores {bytes_text(stores, binary=True)}"]
    if (commit := facts["commit_us"]) is not None:
        parts.insert(0, f"commit p50 {_ms(commit['p50'])} p99 {_ms(commit['p99'])}")
    parts.append(f"journals {bytes_text(journals, binary=True)}")
    if facts["free_bytes"] is not None:
        parts.append(f"{bytes_text(facts['free_bytes'], binary=True)} free")
    full = screen.colour("FULL", "red") + ": submits are refused · " if facts["is_full"] else ""
    screen.line(f"  disk       {full}{' · '.join(parts)}")


def _ms(us: int) -> str:
    return f"{us / 1_000:,.1f} ms"


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
