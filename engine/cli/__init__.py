"""The command line. Imported by the `parkade` command alone: the library does not need it."""

from parkade.cli.app import main

__all__ = ["main"]
