"""Lay build/types/parkade, the tree that static tools can follow.

The top-level folders have other names than the packages they hold, and neither mypy nor pyright
follows the import hook of an editable install. So each .py and py.typed is linked to where its
import name says it should be: file by file, since pyright does not walk linked directories, and
relatively, so that a checkout can be moved.
"""

import os
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".pyi")
MARKER = "py.typed"


def package_folders(root: Path = ROOT) -> dict[str, Path]:
    """Every import package of the project and its folder, as pyproject.toml maps them."""
    with (root / "pyproject.toml").open("rb") as file:
        mapping = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    return {package: root / folder for package, folder in sorted(mapping.items())}


def lay(target: Path, root: Path = ROOT) -> int:
    """Replace `target` with a tree of links to every module under `root`; how many were made."""
    shutil.rmtree(target, ignore_errors=True)
    links = 0
    for package, folder in package_folders(root).items():
        place = target.joinpath(*package.split("."))
        place.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.iterdir()):
            if file.suffix in SUFFIXES or file.name == MARKER:
                (place / file.name).symlink_to(os.path.relpath(file, place))
                links += 1
    return links


def main() -> int:
    """Lay the tree of this checkout."""
    links = lay(ROOT / "build" / "types")
    print(f"build/types/parkade: {links} links")
    return 0


if __name__ == "__main__":
    sys.exit(main())
