"""Makes the golden directory of a format: once, by the version that brings the format.

    PYTHONPATH=tests python tests/golden/make.py v1

`v1/directory` is a town of kit/every_state.py as its last life left it, without what an open makes
anew: lock files, spares, and the empty space behind the last frame of each segment. `v1/seen.json`
is what is seen of it before it is opened, and `v1/end.json` what becomes of it. A directory that is
there is never made again: what it holds is what an older version wrote.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from kit.every_state import Town, live_on, look, resident

HERE = Path(__file__).parent


def make(name: str) -> None:
    """Makes `name` beside this file. Raises FileExistsError if it is there."""
    place = HERE / name
    place.mkdir()
    with tempfile.TemporaryDirectory() as work:
        town = Path(work, "town")
        Town(town, durability="disk").settle()
        strip(town)
        shutil.copytree(town, place / "directory")
        write(place / "seen.json", look(town) | {"resident": resident(town)})
        write(place / "end.json", live_on(town))


def strip(path: Path) -> None:
    """Takes away what no open needs."""
    for file in path.rglob("*"):
        if file.name in ("lock", "lock.mdb", "control.sock") or file.suffix == ".spare":
            file.unlink()
        elif file.suffix == ".segment":
            file.write_bytes(file.read_bytes().rstrip(b"\0") + bytes(8))


def write(path: Path, told: dict[str, Any]) -> None:
    """As JSON that a person can compare."""
    path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(sys.argv[1])
