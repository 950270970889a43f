"""Every line that asks the file layer for something fails once with each error it can meet; with
`make sites` also at a later call and at the last.

The lines are counted twice: as a life of an engine comes by them, and in the syntax trees. After
each failure only errors that are documented were raised, and the next open has all that was
acknowledged (kit/one_life.py tells what that means).
"""

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from kit.one_life import MODES, OneLife, copy_twice, reshard_twice, tickets_of
from kit.sites import CODES, Fault, Ledger, Line, Site, SiteDisk, places_of, sites_in_source
from kit.tool_life import TOOLS, run_tool
from parkade.errors import ParkadeError
from parkade.store.errors import WriteFailed
from parkade.store.journal import Journal
from parkade.store.spares import Sizing

# Of the calls of a site: the first, one in the middle, the last (kit.sites.places_of).
PLACES = (0, 1, 2) if os.environ.get("SITES") == "all" else (0,)  # make sites
SALT = b"salty"
SITES_MIN = 75
# Segments behind a hole: only a power cut leaves them, so no life of a process comes by.
BEYOND = ("store/journal.py", "for scan in run.beyond:")
# The temporary directory of an engine in memory: what cannot be removed of it is passed over.
SPARED = ("engine/engine.py", "remove_tree")
ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("few_tickets_fill_everything")


@pytest.fixture(scope="module")
def found_copying(lived: Path, found: dict[Site, tuple[str, int]]) -> list[Site]:
    """The sites that only a backup or a restore comes by."""
    ledger = Ledger()
    copy_twice(lived / "disk", lived / "copy", ledger)
    return sorted(set(ledger.counts) - set(found))


@pytest.fixture(scope="module")
def found_resharding(lived: Path, found: dict[Site, tuple[str, int]]) -> list[Site]:
    """The sites that only a change of the number of shards comes by."""
    ledger = Ledger()
    shutil.copytree(lived / "disk", lived / "dealt")
    reshard_twice(lived / "dealt", ledger)
    return sorted(set(ledger.counts) - set(found))


@pytest.fixture(scope="module")
def found_by_tool(
    lived: Path, found: dict[Site, tuple[str, int]], found_copying: list[Site]
) -> dict[Site, str]:
    """The sites that only a tool comes by, and which one did first."""
    by_tool: dict[Site, str] = {}
    for name in TOOLS:
        ledger = Ledger()
        run_tool(name, lived / "disk", lived / name, ledger)
        by_tool = dict.fromkeys(ledger.counts, name) | by_tool
    return {site: by_tool[site] for site in sorted(by_tool) if site not in found}


def test_all_of_them_together_come_by_every_line_that_asks_the_file_layer(
    found: dict[Site, tuple[str, int]],
    found_copying: list[Site],
    found_resharding: list[Site],
    found_by_tool: dict[Site, str],
) -> None:
    sites = [*found, *found_copying, *found_resharding, *found_by_tool]
    met = {(site.line, site.way[0]) for site in sites}
    beyond = beyond_line()
    missed = [
        (file, lines.start, call)
        for file, lines, call in sites_in_source()
        if call != "exists"  # it has an answer for every error
        and (file, call) != SPARED
        and not any((Line(file, number), call) in met for number in lines)
    ]
    assert missed == [(beyond.file, beyond.number, "unlink")]
    assert len(found) > SITES_MIN


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
def test_after_any_call_that_failed_all_is_there_and_goes_on(
    found: dict[Site, tuple[str, int]], tmp_path: Path, mode: str, code: int, place: int
) -> None:
    """EIO is met once; from ENOSPC on the disk stays full until somebody sees to it."""
    faults = [
        Fault(site, code, skip=places_of(calls)[place], lasts=code == errno.ENOSPC)
        for site, (first_in, calls) in sorted(found.items())
        if first_in == mode and code in CODES[site.call] and len(places_of(calls)) > place
    ]
    for number, fault in enumerate(faults):
        ledger = Ledger(fault)
        life = OneLife(tmp_path / f"{number}", ledger, mode)
        try:
            life.run()
            life.check()
        except Exception as error:
            raise AssertionError(f"{fault.site} failed with {errno.errorcode[code]}") from error
        assert ledger.failed[fault.site], fault
        for _, told in life.errors:
            assert re.search(r"\[PK-\d+\]$", str(told)), told
            assert type(told) is not ParkadeError
    assert len(faults) > SITES_MIN // 2 or mode != "disk" or place or code != errno.EIO


def test_a_copy_that_fails_at_any_call_says_so_and_leaves_no_directory_that_opens(
    lived: Path, found_copying: list[Site], tmp_path: Path
) -> None:
    faults = [Fault(site, code) for site in found_copying for code in CODES[site.call]]
    for number, fault in enumerate(faults):
        ledger, target = Ledger(fault), tmp_path / f"{number}"
        try:
            copy_twice(lived / "disk", target, ledger)
        except ParkadeError:
            # Its name comes last, and the sync behind that may be what failed.
            assert not target.exists() or fault.site.call == "fsync_directory", fault
        except Exception as error:
            raise AssertionError(f"{fault.site} failed with {fault.code}") from error
        assert ledger.failed == {fault.site: 1}, fault
    assert len(faults) > 30


def test_a_reshard_that_fails_at_any_call_costs_no_ticket(
    lived: Path, found_resharding: list[Site], tmp_path: Path
) -> None:
    before = tickets_of(lived / "dealt")
    faults = [Fault(site, code) for site in found_resharding for code in CODES[site.call]]
    for number, fault in enumerate(faults):
        ledger, path = Ledger(fault), tmp_path / f"{number}"
        shutil.copytree(lived / "disk", path)
        try:
            with suppress(ParkadeError):
                reshard_twice(path, ledger)
            assert tickets_of(path) == before
        except Exception as error:
            raise AssertionError(f"{fault.site} failed with {fault.code}") from error
        assert ledger.failed == {fault.site: 1}, fault
    assert len(faults) > 20


def test_a_tool_that_fails_at_any_call_says_so_and_costs_nothing(
    lived: Path, found_by_tool: dict[Site, str], tmp_path: Path
) -> None:
    """What it works on is as it was, and what it was to make is whole or not there."""
    before = tickets_of(lived / "disk")
    unchanged = image_of(lived / "disk")
    faults = [Fault(site, code) for site in found_by_tool for code in CODES[site.call]]
    for number, fault in enumerate(faults):
        name, target, ledger = found_by_tool[fault.site], tmp_path / f"{number}", Ledger(fault)
        try:
            text = run_tool(name, lived / "disk", target, ledger)
            for left in (lived / "disk").glob("doctor.*"):
                assert fault.site.call == "unlink"
                left.unlink()
            assert image_of(lived / "disk") == unchanged
            if text:
                assert re.search(r"\[PK-\d{3}\]|bad |cannot be listed|could not read", text), text
            elif target.exists():
                assert tickets_of(target) == before
        except Exception as error:
            raise AssertionError(f"{name}: {fault.site} failed with {fault.code}") from error
        assert ledger.failed == {fault.site: 1}, fault
    assert len(faults) > 40


def image_of(path: Path) -> dict[str, bytes]:
    """The bytes of all files but those of readers, which hold nothing of the directory's."""
    files = (each for each in path.rglob("*") if each.is_file() and each.name != "lock.mdb")
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def beyond_line() -> Line:
    file, text = BEYOND
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return Line(file, 2 + next(number for number, line in enumerate(lines) if text in line))


def test_a_segment_behind_a_hole_that_cannot_be_removed_is_removed_by_the_next_open(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "journal")

    def opened(ledger: Ledger, *, is_new: bool = False) -> Journal:
        sizing = Sizing(1, 4_096, frame_bytes_max=64, reserve_bytes=200)
        return Journal.open(
            SiteDisk(ledger), path, salt=SALT, shard=0, store_lsn=0, store_epoch=0,
            mode="process", sizing=sizing, is_new=is_new,
        )  # fmt: skip

    journal = opened(Ledger(), is_new=True)
    for _ in range(30):
        journal.prepare_spare()
        journal.append(b"x" * 60, 1)
    journal.close(clean=False)
    segments = sorted(Path(path).glob("*.segment"))
    assert len(segments) > 3
    content = segments[1].read_bytes()
    segments[1].write_bytes(content[:200] + bytes(len(content) - 200))
    fault = Fault(Site(beyond_line(), ("unlink",)), errno.EIO)
    ledger = Ledger(fault)
    with pytest.raises(WriteFailed):
        opened(ledger)
    assert ledger.failed == {fault.site: 1}
    again = opened(Ledger())
    bodies = [frame.body for frame in again.replay()]
    assert 0 < len(bodies) < 30
    again.close(clean=True)
    assert not set(segments[2:]) & set(Path(path).glob("*.segment"))
