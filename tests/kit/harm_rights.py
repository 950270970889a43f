"""Rights that are taken from whoever looks at a directory: root has them all, and gives them up."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "MOUNTED", "NOBODY", "OTHERS", "RIGHTS", "UNREADABLE", "as_nobody", "can_mount", "rights_taken",
]  # fmt: skip

NOBODY = 65534
UNREADABLE = "unreadable"
OTHERS, CLOSED, MOUNTED = "another user's", "nothing may be written", "a read-only file system"
RIGHTS = (OTHERS, CLOSED, MOUNTED)


@contextmanager
def rights_taken(root: Path, how: str) -> Generator[None, None, None]:
    """The directory at `root` is so while the `with` lasts. Root alone can do all of it."""
    if how == MOUNTED:
        with _mounted_read_only(root):
            yield
        return
    if os.geteuid() == 0:
        os.chown(root.parent, NOBODY, NOBODY)
    if how != OTHERS:
        for path in [root, *root.rglob("*")]:
            if os.geteuid() == 0:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if how == CLOSED:
                path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path in [root, *root.rglob("*")]:
            if path.exists() and how == CLOSED:
                path.chmod(0o700 if path.is_dir() else 0o600)


def as_nobody() -> None:
    """In a process of its own: gives the rights of root up for good."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@contextmanager
def _mounted_read_only(root: Path) -> Generator[None, None, None]:
    aside = root.with_name("aside")
    root.rename(aside)
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(root)], check=True)
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(root)], check=True)
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(root)], check=True)
        root.rmdir()
        aside.rename(root)


def can_mount(place: Path) -> bool:
    """Whether this user may mount something there."""
    if os.geteuid() != 0:
        return False
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        subprocess.run(["umount", str(place)], check=True)
    return done.returncode == 0
