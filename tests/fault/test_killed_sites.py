"""A process is killed at every line that asks the file layer for something: before the call, in the
middle of what it writes, or after it.

In the suite once at each line that changes something: at its first call, at one in the middle or at
the last, in turns. `make sites` takes all of these, and the lines that only read: a kill there
finds what the change before it has left. What was acknowledged is there then, and every attempt
that began has an outcome (`OneLife.check`).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.killed_at import order_of
from kit.one_life import (
    OneLife,
    copy_once,
    copy_twice,
    reshard_twice,
    tickets_of,
)
from kit.sites import CHANGES, Kill, Ledger, Site, places_of
from parkade.errors import ParkadeError

TESTS = Path(__file__).parents[1]
HALVES = ("pwrite", "pwrite_durable", "preallocate")
TAKES_ALL = os.environ.get("SITES") == "all"
SITES_MIN = 75 if TAKES_ALL else 40
READS = ("pread", "size", "stat", "listdir", "file_bytes", "free_space", "free_bytes", "close")
PARTS = 4


pytestmark = pytest.mark.usefixtures("few_tickets_fill_everything")


class Killing:
    """The process whose forks are killed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def kill(self, order: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "-9\n", order


@pytest.fixture(scope="module")
def killing() -> Iterator[Killing]:
    command = [sys.executable, "-m", "kit.killed_at"]
    with subprocess.Popen(
        command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Killing(process)


def kills_at(site: Site, calls: int) -> list[Kill]:
    whens = ["before"]
    whens += ["after"] if site.call in CHANGES else []
    whens += ["half"] if site.call in HALVES else []
    return [Kill(site, skip, when) for skip in places_of(calls) for when in whens]


def kills_of(counts: dict[Site, int]) -> list[Kill]:
    """All of them, or one for each site, in turns."""
    if TAKES_ALL:
        return [kill for site, calls in sorted(counts.items()) for kill in kills_at(site, calls)]
    changing = sorted(item for item in counts.items() if item[0].call not in READS)
    each = [kills_at(site, calls) for site, calls in changing]
    return [kills[number % len(kills)] for number, kills in enumerate(each)]


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_any_call_a_life_loses_nothing_that_was_acknowledged(
    found: dict[Site, tuple[str, int]], killing: Killing, tmp_path: Path, part: int
) -> None:
    kills = kills_of({site: calls for site, (_, calls) in found.items()})
    assert len({kill.site for kill in kills}) > SITES_MIN
    kills = kills[part::PARTS]
    acknowledged = begun = 0
    for number, kill in enumerate(kills):
        path, told, mode = tmp_path / f"{number}", tmp_path / f"{number}.told", found[kill.site][0]
        killing.kill(order_of("life", path, kill, told=told, mode=mode))
        life = OneLife(path, Ledger(), mode)
        life.hear(told.read_text(encoding="ascii"))
        try:
            life.check()
        except Exception as error:
            raise AssertionError(f"{kill.site} was killed: {kill}") from error
        acknowledged += len(life.acked)
        begun += len(life.begun)
        shutil.rmtree(path)
    assert acknowledged > 5 * len(kills) and begun > len(kills), (acknowledged, begun)


def test_killed_at_any_call_a_copy_is_whole_or_is_none(
    found: dict[Site, tuple[str, int]], lived: Path, killing: Killing, tmp_path: Path
) -> None:
    ledger, source = Ledger(), lived / "disk"
    copy_twice(source, tmp_path / "sound", ledger)
    before = tickets_of(tmp_path / "sound")
    kills = kills_of({site: calls for site, calls in ledger.counts.items() if site not in found})
    whole = 0
    for number, kill in enumerate(kills):
        target = tmp_path / f"{number}"
        killing.kill(order_of("copy", target, kill, told=tmp_path / "told", source=source))
        partial = target.with_suffix(".partial")
        if (partial / "manifest.json").exists():
            target = partial  # all but its name is there, and no other copy takes its place
        if target.exists():
            whole += 1
        else:
            copy_once(source, target, Ledger())
        assert tickets_of(target) == before, kill
    assert len(kills) > whole > 0 or not TAKES_ALL


def test_killed_at_any_call_a_reshard_costs_no_ticket(
    found: dict[Site, tuple[str, int]], lived: Path, killing: Killing, tmp_path: Path
) -> None:
    ledger, sound = Ledger(), tmp_path / "sound"
    shutil.copytree(lived / "disk", sound)
    reshard_twice(sound, ledger)
    before = tickets_of(sound)
    kills = kills_of({site: calls for site, calls in ledger.counts.items() if site not in found})
    for number, kill in enumerate(kills):
        path = tmp_path / f"{number}"
        shutil.copytree(lived / "disk", path)
        killing.kill(order_of("reshard", path, kill, told=tmp_path / "told"))
        try:
            assert tickets_of(path) == before
        except (AssertionError, ParkadeError) as error:
            raise AssertionError(f"{kill.site} was killed: {kill}") from error
    assert len(kills) > 5
