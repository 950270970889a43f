"""The command line: words of any kind, in any order, over a directory that nobody runs."""

import functools
import os
import shutil
import tempfile
import traceback
from pathlib import Path

import click
from click.testing import CliRunner

from fuzz.mutations import mutate_bytes
from fuzz.tape import Tape
from fuzz.towns import harmed_copy
from parkade.cli.app import cli

__all__ = ["target"]

EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8}
WORDS_MAX = 4
# Those that never end, or make directories and processes: their own tests have them.
LEFT_OUT = {"run", "demo", "tail", "backup", "restore", "repair", "reshard", "compact", "verify"}
FITTING = (
    "plain", "keyed", "done", "dead", "5m", "7", "38q04gwkj0001vzsyprpa8mh", "a",
    "38q04gwjg0001ymmyprpa8mh", "2028-01-04T09:00+00:00", '{"n": 1}', "psp",
)  # fmt: skip
WORDS = (
    "--json", "--task", "--state", "--limit", "--cursor", "--reason", "--dry-run", "--yes", "-h",
    "--all", "--key", "--tag", "--delay", "--in", "--at", "--unique", "--group", "--result", "-d",
    "--rate", "--target", "--", "-", "plain", "keyed", "done", "dead", "5m", "1e999", "NaN", "-1",
    "9" * 5_000, "x" * 100_000, "{", "[" * 2_000, '{"n": 1}', '{"n": 1e999}', "\ud800", "\udcff",
    "é🙂", "a=b", "=", "a\0b", "\x1b[2J", "38q04gwkj0001vzsyprpa8mh", "2027-01-04", "%", "{n}", "",
    " ", "\n", "@/dev/null", "1/5m", "1/0", "2027-01-04T09:00+99:99",
)  # fmt: skip


@functools.cache
def _empty() -> Path:
    path = Path(tempfile.mkdtemp(prefix="parkade-fuzz-"))
    shutil.rmtree(path)
    return path


@functools.cache
def _commands() -> list[tuple[list[str], click.Command]]:
    """The words of each, and what it takes."""
    found: list[tuple[list[str], click.Command]] = []
    for name, command in sorted(cli.commands.items()):
        if isinstance(command, click.Group):
            found += [([name, each], one) for each, one in sorted(command.commands.items())]
        elif name not in LEFT_OUT:
            found.append(([name], command))
    return found


def _word(tape: Tape) -> str:
    word = tape.pick(FITTING if tape.flag() else WORDS)
    if tape.below(8):
        return word
    changed = mutate_bytes(tape, word[:80].encode("utf-8", "surrogatepass"))
    return changed.decode("utf-8", "surrogateescape")


def target(data: bytes) -> None:
    """Runs one command: an answer, or a text and an exit code; no traceback."""
    tape = Tape(data)
    words, command = tape.pick(_commands()) if tape.below(16) else ([], None)
    words = [*words]
    options = [] if command is None else [one for one in command.params if one.opts]
    words += [_word(tape) for one in options if isinstance(one, click.Argument) and one.required]
    for _ in range(tape.below(WORDS_MAX)):
        if options and tape.below(3):
            option = tape.pick(options)
            is_named = isinstance(option, click.Option)
            words += [tape.pick(option.opts)] if is_named else []
            words += [] if is_named and getattr(option, "is_flag", False) else [_word(tape)]
        else:
            words.append(_word(tape))
    with harmed_copy("shell") as path:
        place = str(path) if tape.below(8) else str(_empty())
        environment = {"PARKADE_DIR": None, "HOME": os.fspath(path)}
        done = CliRunner().invoke(cli, ["--dir", place, *words], env=environment)
    error = done.exception
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
        raise error
    assert done.exit_code in EXIT_CODES, (words, done.exit_code)
