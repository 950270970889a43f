"""The commands that README and docs show: each exists, and takes what it is given there."""

import re
import shlex
from pathlib import Path

import click
import pytest

from parkade.cli.app import cli

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"^(?:\$ |    )parkade (.+)$", re.MULTILINE)  # a line of a block: whole
NAMED = re.compile(r"`parkade ([^`]+)`")  # in a sentence: what it needs may be left out
IN_TABLE = re.compile(r"^\| (`.+?`) \| [^|]+ \|$", re.MULTILINE)


def parse(told: str, *, is_whole: bool) -> list[str]:
    """The names of the command, after the command line has read all of it and run nothing."""
    words = shlex.split(
        re.sub(r"[\[\]]|\.\.\.$|> .*", "", told.replace("ID...", "ID")), comments=True
    )
    command: click.Command = cli
    context: click.Context | None = None
    names: list[str] = []
    while True:
        try:
            context = command.make_context(command.name or "parkade", list(words), parent=context)
        except click.MissingParameter:
            if is_whole:
                raise
            return names
        except click.exceptions.NoArgsIsHelpError:
            return names
        if not isinstance(command, click.Group):
            return names
        words = [*vars(context).get("_protected_args", ()), *context.args]
        if not words:
            return names
        name, found, words = command.resolve_command(context, words)
        assert name is not None and found is not None
        names.append(name)
        command = found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_that_a_document_shows_is_understood(document: Path) -> None:
    text = document.read_text("utf-8")
    for told in SHOWN.findall(text):
        assert parse(told, is_whole=True), told
    for told in NAMED.findall(text):
        parse(told, is_whole=False)


def test_the_guide_names_every_command_in_its_table() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text("utf-8")
    table = guide.split("\n## The command line\n")[1].split("\n## ")[0]
    cells = [cell for row in IN_TABLE.findall(table) for cell in re.findall("`([^`]+)`", row)]
    named = {name for cell in cells for name in parse(cell, is_whole=False)[:1]}
    assert set(cli.commands) - named == set()


def test_the_documents_show_commands() -> None:
    told = "\n".join(document.read_text("utf-8") for document in DOCUMENTS)
    assert len(SHOWN.findall(told)) > 15
    assert len(NAMED.findall(told)) > 15


@pytest.mark.parametrize("told", ["statuss", "status --nope", "dead revives", "reshard --to many"])
def test_a_command_that_does_not_exist_is_not_understood(told: str) -> None:
    with pytest.raises(click.UsageError):
        parse(told, is_whole=False)
