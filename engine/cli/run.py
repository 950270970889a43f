"""`parkade run MODULE:ENGINE`: an application's engine in the foreground."""

import importlib
import logging
import os
import sys
from typing import Any

import click

from parkade.cli import exits
from parkade.engine import Engine
from parkade.errors import ConfigError
from parkade.foreground import run_in_foreground

__all__ = ["run"]

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@click.argument("app", metavar="MODULE:ENGINE")
@click.pass_context
def run(ctx: click.Context, app: str) -> None:
    """Runs an engine that a module makes.

    On the directory that it names itself, whatever --dir says. SIGTERM and Ctrl-C stop it in order;
    a second one ends the process at once. Log lines go to stderr, unless the module configures
    logging. Exits with 1 when attempts were given back or a checkpoint could not be written.
    """
    engine = load_engine(app)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)

    def begun() -> None:
        place = engine.desk("run").runtime.directory.path
        click.echo(f"running {app} on {place} (pid {os.getpid()}); Ctrl-C stops it")

    report = run_in_foreground(engine, begun)
    click.echo(
        f"stopped: {report.finished} finished, {report.cancelled} cancelled, "
        f"{report.given_back} given back, {report.zombies} still running"
    )
    if not report.clean:
        ctx.exit(exits.NEGATIVE)


def load_engine(app: str) -> Engine:
    """The engine of `package.module:name`, which is imported as from the current directory.

    Raises `ConfigError`; what the module itself raises comes through.
    """
    name, _, path = app.partition(":")
    if not name or not path:
        raise ConfigError(f"{app}: give a module and the engine in it, like shop.jobs:engine")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{app}: there is no module {error.name} in {os.getcwd()} or among what is installed. "
            "Run this where the application lies"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Engine):
        raise ConfigError(
            f"{app}: {path} in {name} is {'missing' if found is None else 'no Engine'}. Name the "
            "engine that the module makes"
        )
    return found
