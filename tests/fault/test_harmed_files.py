"""Every file of a directory harmed in every way, and every tool asked about it (kit/harm_tools.py).

Whatever is asked answers: it works and all is there, or it says which file and what to do. Nothing
hangs, nothing is lost unseen, and what only reads writes nothing. One question a case by default;
`make harms` asks all of them of all cases, also of a directory that was closed.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import harm_tools
from kit.harm_files import Case, cases_of
from kit.harm_rights import MOUNTED, OTHERS, RIGHTS, UNREADABLE, can_mount
from kit.harm_template import CLOSED, KILLED, build_templates
from kit.harm_tools import QUESTIONS

HAS_ALL = bool(os.environ.get("HARMS"))
SAMPLE = 7  # one case of so many
CASES_MIN = 450


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Where every user may look; the directories of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        build_templates(base)
        yield base


def judged(base: Path, asked: list[tuple[Case, list[str]]]) -> list[dict[str, Any]]:
    """What was found of each question to each case."""
    lines = "".join(json.dumps([case, names]) + "\n" for case, names in asked)
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-P", harm_tools.__file__, str(base)],
        input=lines, stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def wrong_in(found: list[dict[str, Any]]) -> list[str]:
    return [f"{one['name']} of {one['case']}: {one['wrong']}" for one in found if one["wrong"]]


def cases(base: Path, kind: str) -> list[Case]:
    """Those of any user; of two shards the first is enough, unless all is asked for."""
    found = [case for case in cases_of(base, kind) if case.harm not in RIGHTS]
    return found if HAS_ALL else [case for case in found if not case.file.startswith("shard-001")]


def one_of_many(found: list[Case]) -> list[tuple[Case, list[str]]]:
    """A case in `SAMPLE`, and a question to each, so that all questions meet all kinds of harm."""
    names = list(QUESTIONS)
    return [(case, [names[number % len(names)]]) for number, case in enumerate(found[::SAMPLE])]


@pytest.mark.parametrize("kind", [KILLED, CLOSED])
def test_a_harmed_file_is_named_or_costs_nothing(base: Path, kind: str) -> None:
    found = cases(base, kind)
    if kind == KILLED:
        assert len(found) > CASES_MIN
    asked = [(case, list(QUESTIONS)) for case in found] if HAS_ALL else one_of_many(found)
    answers = judged(base, asked)
    assert len(answers) == sum(len(names) for _, names in asked)
    assert wrong_in(answers) == []
    refused = sum(bool(one["answer"]["exit"] or "refused" in one["answer"]) for one in answers)
    assert refused > len(answers) // 4


@pytest.mark.parametrize("rights", RIGHTS)
def test_without_rights_what_reads_reads_and_all_else_says_why_not(
    base: Path, tmp_path: Path, rights: str
) -> None:
    if rights == MOUNTED and not can_mount(tmp_path):
        pytest.skip("only root may mount a file system")
    if rights == OTHERS and os.geteuid() != 0:
        pytest.skip("only root has files that belong to others")
    answers = judged(base, [(Case(KILLED, ".", rights), list(QUESTIONS))])
    assert len(answers) == len(QUESTIONS)
    assert wrong_in(answers) == []


def test_a_file_that_may_not_be_read_is_named(base: Path) -> None:
    found = [case for case in cases(base, KILLED) if case.harm == UNREADABLE]
    asked = [(case, ["verify", "engine"]) for case in found]
    assert len(asked) > 10
    assert wrong_in(judged(base, asked)) == []
