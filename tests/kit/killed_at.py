"""Lives that are each killed at one call of the file layer (kit/one_life.py, kit/sites.py).

    python -m kit.killed_at

Each line of its input is JSON: what is lived, where, and at which call it is killed. It forks a
process that lives so far, and prints how that ended. Forking saves the start of an interpreter for
each; the parent of the forks never opens an engine. What was acknowledged stands in the file
`told`, one line a write, which is in the kernel's hands before anything else happens.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.one_life import OneLife, copy_twice, reshard_twice, small_limits
from kit.sites import Kill, Ledger, Line, Site

__all__ = ["order_of"]


def order_of(
    what: str, path: Path, kill: Kill, *, told: Path, mode: str = "disk", source: Path | None = None
) -> str:
    """A line of input: `what` is "life", "copy" or "reshard"."""
    site = kill.site
    return json.dumps(
        {
            "what": what,
            "path": str(path),
            "told": str(told),
            "mode": mode,
            "source": str(source),
            "site": [site.line.file, site.line.number, *site.way],
            "skip": kill.skip,
            "when": kill.when,
        }
    )


def live(order: dict[str, Any]) -> None:
    file, number, *way = order["site"]
    kill = Kill(Site(Line(file, number), tuple(way)), order["skip"], order["when"])
    ledger, path = Ledger(kill=kill), Path(order["path"])
    with small_limits():
        if order["what"] == "copy":
            copy_twice(Path(order["source"]), path, ledger)
        elif order["what"] == "reshard":
            reshard_twice(path, ledger)
        else:
            life = OneLife(path, ledger, order["mode"])
            life.tell = teller(order["told"])
            life.run()


def teller(path: str) -> Callable[[str], None]:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return lambda line: _write(file, line)


def _write(file: int, line: str) -> None:
    os.write(file, f"{line}\n".encode())


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                live(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
