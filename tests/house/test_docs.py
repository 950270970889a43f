"""The documents: their code compiles, their links lead somewhere, their commands exist."""

import ast
import re
import textwrap
from pathlib import Path

import pytest
from house.import_tree import ROOT
from house.source import files

DOCUMENTS = [file for file in files() if file.suffix == ".md"]
BLOCK = re.compile(r"^([ \t]*)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
MAKE_COMMAND = re.compile(r"(?:^\$ |`)make ([a-z]+)", re.MULTILINE)


def name_of(document: Path) -> str:
    """A document's path from the root."""
    return document.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_python_block_of_a_document_compiles(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        name = f"{name_of(document)}, the block from line {line}"
        compile(textwrap.dedent(match[2]), name, "exec", flags=flags)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = {target for target in LINK.findall(text) if "://" not in target}
    missing = {target for target in targets if not (document.parent / target).exists()}
    assert missing == set()


def test_every_make_command_of_the_documents_is_a_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        used = set(MAKE_COMMAND.findall(document.read_text(encoding="utf-8")))
        assert used - targets == set(), name_of(document)
