"""The tools that work on a directory nobody runs, each run once in this process, on a disk that a
test makes fail."""

import dataclasses
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from kit.sites import Ledger, SiteDisk, SiteFiles
from parkade import compacting, repairing, salvaging
from parkade.apart import ChildDied
from parkade.cli.app import cli
from parkade.errors import ParkadeError
from parkade.store.journal import Sizing

__all__ = ["SMALL_SIZING", "TOOLS", "Ended", "run_tool"]

SMALL = {
    "segment_bytes_first": 16 << 10,
    "segment_bytes_max": 16 << 10,
    "frame_bytes_max": 2_000,
    "reserve_bytes": 200,
}
SMALL_SIZING = tuple(SMALL.get(each.name, each.default) for each in dataclasses.fields(Sizing))
DEATH = "SIGBUS"
DISKS = (
    "cli.source",
    "cli.doctor",
    "cli.stat",
    "cli.verify",
    "cli.compact",
    "compacting",
    "repairing",
    "reader",
)


class Ended(Exception):
    """A command ended with an error, or with a loss; its text."""


@contextmanager
def on(ledger: Ledger) -> Generator[None, None, None]:
    """Every tool's disk, and the files of stores that it makes, are the ledger's."""
    patches: list[Any] = [
        mock.patch(f"parkade.{name}.RealDisk", lambda: SiteDisk(ledger)) for name in DISKS
    ]
    patches.append(mock.patch("parkade.store.parked.StoreFiles", lambda: SiteFiles(ledger)))
    patches.append(mock.patch("parkade.salvaging.lines_apart", _LinesHere()))
    patches.append(mock.patch.object(Sizing.__init__, "__defaults__", SMALL_SIZING))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


class _LinesHere:
    """What a child would say, said here; the first one dies over a row that it has half-written."""

    def __init__(self) -> None:
        self._has_died = False

    def __call__(self, module: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert module == salvaging.__name__
        lines = salvaging._say(asked)
        for said in lines:
            if not self._has_died:
                self._has_died = True
                with open(asked["steps"][0][1], "ab") as rows:
                    rows.write(b"half")
                raise ChildDied(DEATH)
            yield said


def _compact(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    list(compacting._say({"path": str(target)}))


def _repair(source: Path, target: Path) -> None:
    report = repairing.repair(str(source), str(target))
    # That a child died is told of each repair here; what it was reading is read again.
    notes = [note for part in report.parts for note in part.notes if DEATH not in note]
    if notes or any(part.lost or part.holes or part.left for part in report.parts):
        raise Ended(f"{report.parts}")


def _repair_without_manifest(source: Path, target: Path) -> None:
    aside = target.with_name(f"{target.name}.source")
    if not aside.exists():
        shutil.copytree(source, aside)
        (aside / "manifest.json").unlink()
    repairing.repair(str(aside), str(target))


def _command(*words: str) -> Callable[[Path, Path], None]:
    def run(source: Path, target: Path) -> None:
        done = CliRunner().invoke(cli, ["--dir", str(source), *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code:
            raise Ended(done.output)

    return run


TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "compact": _compact,
    "repair": _repair,
    "repair without manifest": _repair_without_manifest,
    "stat": _command("stat"),
    "status": _command("status"),
    "doctor": _command("doctor"),
    "verify": _command("verify"),
    "export": _command("export"),
}


def run_tool(name: str, source: Path, target: Path, ledger: Ledger) -> str:
    """What it said when it failed; empty where it did not. Raises what is not documented."""
    with on(ledger):
        try:
            TOOLS[name](source, target)
        except (ParkadeError, Ended) as error:
            return str(error)
    return ""
