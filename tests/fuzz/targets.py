"""All targets by name: what each does with bytes, and how many bytes it makes use of."""

from collections.abc import Callable
from typing import NamedTuple

from fuzz import cli, control, journal, manifest, names, pages, payload, rows, wire

__all__ = ["TARGETS", "Target"]


class Target(NamedTuple):
    """`run` raises for what must not be. `examples` are those of the default suite."""

    run: Callable[[bytes], None]
    bytes_max: int
    examples: int


TARGETS = {
    "journal": Target(journal.target, 64, 25),
    "rows": Target(rows.target, 64, 25),
    "pages": Target(pages.target, 200, 2),
    "manifest": Target(manifest.target, 64, 100),
    "payload": Target(payload.target, 64, 100),
    "names": Target(names.target, 200, 30),
    "calls": Target(names.answers, 200, 30),
    "control": Target(control.target, 200, 30),
    "wire": Target(wire.target, 100, 100),
    "cli": Target(cli.target, 100, 20),
}
