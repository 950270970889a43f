"""Directories of ours inside a data directory: made, durably, or refused as the store refuses."""

from parkade.store.disk import Disk
from parkade.store.errors import write_error

__all__ = ["make_folder"]


def make_folder(disk: Disk, path: str) -> None:
    """Makes a directory and its missing parents, each one durable. Raises WriteFailed, NoRoom."""
    try:
        disk.make_directories(path)
    except OSError as error:
        raise write_error(path, error) from error
