"""`parkade [--dir DIR] COMMAND`: the group, its errors and its exit codes.

0 done              4 the directory is in use     7 refused
1 the answer is no  5 storage damaged           130 interrupted
2 usage             6 timed out
3 not found
"""

from typing import Any

import click

from parkade.cli import exits
from parkade.cli.backup import backup, restore
from parkade.cli.changing import cancel, pause, reschedule, resume, run_now, submit
from parkade.cli.compact import compact, export
from parkade.cli.dead import dead
from parkade.cli.demo import demo
from parkade.cli.doctor import doctor
from parkade.cli.levers import breaker, limit
from parkade.cli.listing import ls
from parkade.cli.repair import repair
from parkade.cli.reshard import reshard
from parkade.cli.run import run
from parkade.cli.showing import show
from parkade.cli.stat import stat
from parkade.cli.status import status
from parkade.cli.tail import tail
from parkade.cli.verify import verify
from parkade.cli.why import why
from parkade.errors import EngineInUse, ParkadeError
from parkade.version import VERSION

__all__ = ["cli", "main"]

# The error's own advice is for an application; who types a command has another way.
IN_USE_ADVICE = "parkade: this command needs the directory: stop that process, and run it again"


class Commands(click.Group):
    """The commands; an error of parkade's goes to stderr, and decides the exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ParkadeError as error:
            click.echo(f"parkade: {error}", err=True)
            if error.code == EngineInUse.code:
                click.echo(IN_USE_ADVICE, err=True)
            ctx.exit(exits.exit_code_of(error))
        except click.NoSuchOption as error:
            if error.option_name not in ("--dir", "-d") or error.ctx is None:
                raise
            text = f"{error.option_name} stands before the command: "
            command = error.ctx.command_path.removeprefix(ctx.command_path)
            text += f"{ctx.command_path} {error.option_name} DIR{command}"
            raise click.UsageError(text, error.ctx) from None
        except KeyboardInterrupt:
            click.echo("parkade: interrupted", err=True)
            ctx.exit(exits.INTERRUPTED)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PARKADE"},
)
@click.option(
    "--dir",
    "-d",
    "directory",
    envvar="PARKADE_DIR",
    default="./parkade-data",
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="The data directory.",
)
@click.version_option(VERSION, prog_name="parkade")
@click.pass_context
def cli(ctx: click.Context, directory: str) -> None:
    """Looks into a parkade directory, whether an engine runs on it or not.

    A running engine is asked; without one the files are read. What changes something is done by
    the running engine, or by one that is opened for it and starts nothing.
    """
    ctx.obj = directory


_commands = (
    *(status, ls, show, why),
    *(submit, cancel, run_now, reschedule, pause, resume, dead),
    *(breaker, limit),
    *(tail, run, verify, demo),
    *(backup, restore, repair, reshard),
    *(stat, doctor, compact, export),
)
for _command in _commands:
    cli.add_command(_command)


def main() -> None:
    """The `parkade` command."""
    cli(prog_name="parkade")
