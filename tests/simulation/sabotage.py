"""Deliberate faults, each switched on alone: the simulator and a named test must catch it.

    make sabotage                all of them; prints who caught each, and within how many seeds
    make sabotage FAULT=name     those with that in their names
    make sabotage RECORD=1       all of them, and writes the table of docs/testing.md

What the table records is what test_sabotaged.py tries first.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from simulation.faults import FAULTS, Fault
from simulation.history import history_of, run

__all__ = ["Caught", "catch", "listed", "recorded"]

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- make sabotage RECORD=1 writes from here -->", "<!-- to here -->"
SEEDS_MAX = 60
TEST_MAX_S = 120
TOLD_MAX = 60
FAULTY = ("faults.py", "_rules.py", "test_sabotage.py", "test_sabotage_store.py")
LAWS = ("/tests/kit/", "/tests/simulation/", "/shard/check.py", "/store/verify.py")


class Caught(NamedTuple):
    """`seed`: the first whose history fails. `law`: what it breaks, and where that is checked."""

    seed: int
    law: str


class Told(NamedTuple):
    """What came of one fault."""

    name: str
    caught: Caught | None
    test: str
    is_test_failing: bool


def catch(fault: Fault, seeds: Iterable[int]) -> Caught | None:
    """The first of these histories that fails with the fault switched on."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            fault.broken(patch)
            try:
                run(history_of(seed, fault.lean))
            except Exception as error:
                return Caught(seed, _law(error))
    return None


def _law(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    if isinstance(error, AttributeError | NameError | TypeError):
        assert not frames[-1].co_filename.endswith(FAULTY), ("the fault is at fault", error)
    told = error.args[0] if error.args else ""
    while isinstance(told, tuple | list) and told:
        told = told[0]
    text = f"{type(error).__name__} " if not isinstance(error, AssertionError) else ""
    text += re.sub(r"\d{4,}|/\S+", "...", str(told)).split("\n")[0][:TOLD_MAX]
    laws = [code for code in frames if any(law in code.co_filename for law in LAWS)]
    where = (laws or frames)[-1]
    return f"{Path(where.co_filename).stem}.{where.co_name.strip('_')}: {text}".strip(": ")


def fails_its_test(fault: Fault) -> bool:
    """Whether the test that a fault names fails while it is switched on."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "simulation.switched_on",
        f"--fault={fault.name}", "-o", "faulthandler_timeout=0", fault.test,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_MAX_S
        )
    except subprocess.TimeoutExpired:
        return False  # a test that does not end tells nobody what is wrong
    return ran.returncode == 1 and " failed" in ran.stdout


def recorded() -> dict[str, int]:
    """By fault, the seed that caught it when the table was written."""
    return {row[0]: int(row[2]) - 1 for row in _rows() if row[2].isdigit()}


def listed() -> set[str]:
    """The faults that the table knows, caught or not."""
    return {row[0] for row in _rows()}


def _rows() -> list[list[str]]:
    _, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
    listed, _, _ = rest.partition(END)
    rows = [line.strip("|").split("|") for line in listed.strip().splitlines()]
    return [[cell.strip().strip("`") for cell in row] for row in islice(rows, 2, None)]


def _write(told: Sequence[Told]) -> None:
    lines = ["| fault | the law that notices | within | the test that fails |", "|---|---|---|---|"]
    for name, caught, test, is_failing in sorted(told, key=lambda each: each.name.lower()):
        law = "" if caught is None else caught.law.replace("|", "/").replace("`", "'")
        within = "-" if caught is None else str(caught.seed + 1)
        shown = test.removeprefix("tests/") if is_failing else "-"
        lines.append(f"| `{name}` | `{law}` | {within} | `{shown}` |")
    text = TABLE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    TABLE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", "utf-8")


def _told(name: str) -> Told:
    fault = next(fault for fault in FAULTS if fault.name == name)
    return Told(name, catch(fault, range(SEEDS_MAX)), fault.test, fails_its_test(fault))


def main() -> int:
    """The command: 0 if each fault was caught twice."""
    parser = argparse.ArgumentParser(prog="make sabotage")
    parser.add_argument("name", nargs="?", default="", help="those with that in their names")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="write the table of docs/testing.md")
    given = parser.parse_args()
    chosen = [fault.name for fault in FAULTS if given.name in fault.name]
    told = []
    with ProcessPoolExecutor(given.workers) as pool:
        for each in pool.map(_told, chosen):
            told.append(each)
            within = "-" if each.caught is None else each.caught.seed + 1
            law = "no history fails" if each.caught is None else each.caught.law
            test = "" if each.is_test_failing else f"; NOT by {each.test}"
            print(f"{within:>5}  {each.name}: {law}{test}", flush=True)
    missed = [each for each in told if each.caught is None or not each.is_test_failing]
    print(f"{len(told)} faults, {len(missed)} not caught by both")
    if given.record and not given.name:
        _write(told)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
