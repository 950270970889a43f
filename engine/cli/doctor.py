"""`parkade doctor`: whether the machine and the directory are what an engine needs."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from parkade.cli import exits
from parkade.cli.checkup import (
    BAD,
    OK,
    WARN,
    Check,
    check_clock,
    check_descriptors,
    check_file_system,
    check_free_space,
    check_gil,
    check_retention,
    check_sync,
    check_versions,
    file_system_of,
    time_syncs,
)
from parkade.cli.run import load_engine
from parkade.cli.screen import Output, Screen, clean, output_options
from parkade.cli.source import ask
from parkade.clock import SystemClock
from parkade.limits import SHARDS_DEFAULT
from parkade.reader import existing_manifest
from parkade.storage_facts import storage_facts
from parkade.store.disk import Disk, RealDisk
from parkade.store.errors import NO_ROOM_CODES
from parkade.store.manifest import Manifest

__all__ = ["doctor"]

ENDED = ("done", "cancelled", "expired")
COLOURS = {OK: "green", WARN: "yellow", BAD: "red"}


@click.command()
@click.option("--app", metavar="MODULE:ENGINE", help="Also: tasks with tickets that it lacks.")
@output_options
@click.pass_context
def doctor(ctx: click.Context, app: str | None, is_json: bool, is_jsonl: bool) -> None:
    """Checks disk, clock, limits, room, versions, and the directory.

    Writes one small file beside it and removes it. Exits with 1 when something is bad.
    """
    output = Output(is_json=is_json, is_jsonl=is_jsonl)
    path = os.path.abspath(ctx.obj)
    checks = list(_checks(RealDisk(), path, app))
    facts: list[dict[str, Any]] = [check._asdict() for check in checks]
    if output.is_for_people:
        screen = Screen()
        for check in checks:
            mark = screen.colour(check.status.ljust(4), COLOURS[check.status])
            screen.line(f"{mark}  {check.name.ljust(11)}  {clean(check.text)}")
            if check.advice:
                screen.line(f"{' ' * 19}{clean(check.advice)}")
    else:
        output.document({"directory": path, "checks": facts}, lines=facts)
    if any(check.status == BAD for check in checks):
        ctx.exit(exits.NEGATIVE)


def _checks(disk: Disk, path: str, app: str | None) -> Iterator[Check]:
    clock = SystemClock()
    is_there = os.path.isdir(path)
    place = path if is_there else os.path.dirname(path)
    manifest = existing_manifest(disk, path, clock.now_ms()) if is_there else None
    kind = file_system_of(os.path.realpath(place))
    yield check_file_system(kind)
    try:
        yield check_sync(time_syncs(disk, place, clock), kind)
    except OSError as error:
        advice = "give a directory that this user may write"
        if error.errno in NO_ROOM_CODES:
            advice = "free some: nothing can be written until then"
        yield Check("sync", BAD, f"nothing can be written there: {error.strerror}", advice)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shards = SHARDS_DEFAULT if manifest is None else manifest.shards
    yield check_descriptors(-1 if soft == resource.RLIM_INFINITY else soft, shards)
    free_bytes = _free_bytes(disk, place)
    if manifest is None:
        yield check_clock(clock.now_ms(), 0, _is_clock_synced())
        yield _check_room(free_bytes, 0, 0)
        yield Check("directory", WARN, f"{path} is not there", "an engine makes it")
    else:
        yield from _of_directory(disk, path, manifest, free_bytes, clock.now_ms(), app)
    yield check_gil()
    yield check_versions()


def _of_directory(
    disk: Disk, path: str, manifest: Manifest, free_bytes: int | None, now_ms: int, app: str | None
) -> Iterator[Check]:
    parts = list(storage_facts(disk, path, manifest))
    whole = [part for part in parts if not part["error"]]
    settled = [part["settled_at"] for part in whole if part["settled_at"]]
    settled_ms = round(datetime.fromisoformat(max(settled)).timestamp() * 1000) if settled else 0
    yield check_clock(now_ms, settled_ms, _is_clock_synced())
    stores = [part["file_bytes"] for part in whole]
    stored_bytes = sum(stores) + sum(part["journal_file_bytes"] for part in whole)
    yield _check_room(free_bytes, stored_bytes, max(stores, default=0))
    wrong = [part for part in parts if part["error"] or part["journal_damage"]]
    for part in wrong:
        text = f"{part['part']}: {part['error'] or part['journal_damage']}"
        yield Check("directory", BAD, text, f"parkade --dir {path} verify --deep")
    if not wrong:
        yield Check("directory", OK, f"{path}, {manifest.shards} shards")
    status = ask(path, "status")
    states: dict[str, int] = status["states"]
    ended, tickets = sum(states[state] for state in ENDED), sum(states.values())
    yield check_retention(
        ended, tickets, stored_bytes if free_bytes is None else free_bytes, stored_bytes
    )
    if app is not None:
        yield _check_tasks(app, status["tasks"])


def _free_bytes(disk: Disk, place: str) -> int | None:
    """None where the system does not tell."""
    try:
        return disk.free_space(place)
    except OSError:
        return None


def _check_room(free_bytes: int | None, stored_bytes: int, store_bytes_max: int) -> Check:
    if free_bytes is None:
        return Check("space", BAD, "the system does not tell how much is free", "look at the disk")
    return check_free_space(free_bytes, stored_bytes, store_bytes_max)


def _check_tasks(app: str, tasks: dict[str, dict[str, int]]) -> Check:
    engine = load_engine(app)
    waiting = sorted(
        task
        for task, counts in tasks.items()
        if (counts.get("scheduled") or counts.get("running")) and engine.task_of(task) is None
    )
    if not waiting:
        return Check("tasks", OK, f"{app} has every task that tickets wait for")
    advice = "import the module that has them, or add aliases= to their new names"
    return Check("tasks", BAD, f"{app} lacks {', '.join(waiting)}", advice)


def _is_clock_synced() -> bool | None:
    """None where nobody tells."""
    told = shutil.which("timedatectl")
    if told is None:
        return None
    try:
        done = subprocess.run(
            [told, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())
