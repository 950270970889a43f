"""What the repository's text may not say, wherever it stands."""

import re
from pathlib import Path

from house.import_tree import ROOT
from house.source import texts

HERE = Path(__file__).relative_to(ROOT).as_posix()

# The project speaks of itself alone: not of the machine it was written on, nor of who typed it.
ELSEWHERE = (
    r"/work/",
    r"\bshared/",
    r"/root/",
    r"pypi-more",
    r"\bsub-?agents?\b",
    r"\bAI\b",
    r"\bhelper session",
)
# A promise in a comment is kept by nobody.
PROMISES = (r"\bTODO\b", r"\bFIXME\b", r"\bXXX\b", r"\bHACK\b")


def lines_with(patterns: tuple[str, ...]) -> list[str]:
    """Every line of the project that one of the patterns is found in, save in this file."""
    pattern = re.compile("|".join(patterns))
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        if path != HERE
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_repository_speaks_of_itself_alone() -> None:
    assert lines_with(ELSEWHERE) == []


def test_nothing_is_promised_in_a_comment() -> None:
    assert lines_with(PROMISES) == []


def test_the_words_are_looked_for_in_documents_and_code() -> None:
    paths = {path for path, _ in texts()}
    assert {"README.md", "CHANGELOG.md", "Makefile", ".ci/run", "engine/__init__.py"} <= paths
