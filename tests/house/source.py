"""The repository as the house tests read it: text files, and Python modules with their trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from house.import_tree import ROOT, package_folders

# What make, the tools and a build leave behind; none of it is the project's text.
SKIPPED = {"build", "dist", "__pycache__", "node_modules", "parkade-data"}
TEXT_SUFFIXES = {
    ".md",
    ".py",
    ".pyi",
    ".toml",
    ".in",
    ".txt",
    ".cfg",
    ".yml",
    ".yaml",
    ".sh",
    ".html",
}
TEXT_NAMES = {"Makefile", "LICENSE", "run"}
# Copied from their users' hands, character by character: the rules of the house do not bind them.
STORIES = "tests/stories/"


@dataclass(frozen=True)
class Source:
    """One Python file: where it is, as a path from the root, and what it says."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed module."""
        return ast.parse(self.text, self.path)

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return Path(self.path).stem

    @property
    def folder(self) -> str:
        """The top-level folder it lies in; empty for a file in the root."""
        return self.path.split("/", 1)[0] if "/" in self.path else ""

    def at(self, node: ast.AST, what: str) -> str:
        """A finding at a node, as an editor can jump to it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {what}"


def files(root: Path = ROOT) -> Iterator[Path]:
    """Every file of the project, in a fixed order, without what tools have made."""
    for entry in sorted(root.iterdir()):
        hidden = entry.name.startswith(".") and entry.name not in {".ci", ".gitignore"}
        if hidden or entry.name in SKIPPED or entry.name.endswith(".egg-info"):
            continue
        if entry.is_dir():
            yield from files(entry)
        elif entry.is_file():
            yield entry


def texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every text file of the project: path from the root, content."""
    for file in files(root):
        if file.suffix in TEXT_SUFFIXES or file.name in TEXT_NAMES:
            yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")


def sources(root: Path = ROOT) -> list[Source]:
    """Every Python module that the rules bind."""
    return [
        Source(path, text)
        for path, text in texts(root)
        if path.endswith(".py") and not is_story(path)
    ]


def is_story(path: str) -> bool:
    """Whether a file is a user's story; the runner beside them is ours."""
    return path.startswith(STORIES) and not path.endswith("test_stories.py")


def product_folders() -> set[str]:
    """The top-level folders that are installed."""
    return {folder.relative_to(ROOT).parts[0] for folder in package_folders().values()}
