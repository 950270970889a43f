"""The queues that are measured, their versions, and an environment for each.

An environment is made once and kept under build/peers/ by what is installed in it; `make clean`
takes it away. Versions are pinned, so that two runs measure the same code. parkade is installed as
it is here: a developer's environment compiles and imports more than an application's, which its
memory and its opening would show.
"""

import hashlib
import platform
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOME = Path("build", "peers")
PIP_S_MAX = 300
OURS = "parkade"
ROOT = Path(__file__).parents[2]
OUR_FOLDERS = ("engine", "shard", "store", "wheel")


@dataclass(frozen=True)
class Peer:
    """One queue: what to install, and what a reader should know of what it is."""

    name: str
    packages: tuple[str, ...]
    is_embedded: bool = True
    remark: str = ""

    @property
    def title(self) -> str:
        """Its name and version, for a table."""
        return self.packages[0].replace("==", " ") if self.packages else self.name


SQLALCHEMY = "sqlalchemy==2.1.9"
PEERS = (
    Peer(OURS, ()),
    Peer("huey", ("huey==3.5.4",), remark="takes a job off the queue before it runs"),
    Peer("apscheduler", ("apscheduler==3.11.3", SQLALCHEMY), remark="removes a job as it starts"),
    Peer("persist_queue", ("persist-queue==1.1.0",)),
    Peer(
        "litequeue",
        ("litequeue==0.9",),
        remark="what ran stays locked until the application calls retry()",
    ),
    Peer("diskcache", ("diskcache==5.6.3",), remark="a job is gone once it is taken"),
    Peer("dbos", ("dbos==3.4.0", SQLALCHEMY), remark="workflows with steps; recovers by itself"),
    Peer("cairnq", ("cairnq==0.15.1", "aiosqlite==0.22.1")),
    Peer(
        "procrastinate",
        ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
        is_embedded=False,
        remark="stalled jobs are retried when the application asks for them",
    ),
    Peer(
        "pgqueuer",
        ("pgqueuer==1.6.0", "asyncpg==0.32.0"),
        is_embedded=False,
        remark="picked again once its heartbeat is 30 s old",
    ),
)


class Unavailable(Exception):
    """A queue cannot be measured here; the text says why, in one line."""


def python_of(peer: Peer) -> Path:
    """The interpreter of its environment, which is made if need be. Raises `Unavailable`."""
    packages = peer.packages or (str(ROOT),)
    wanted = "\n".join((platform.python_version(), *packages, "" if peer.packages else our_code()))
    home = HOME / f"{peer.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        print(f"installing {' '.join(packages)}", file=sys.stderr, flush=True)
        venv.create(home, clear=True, with_pip=True)
        install(python, packages)
        (home / "ready").touch()
    # Not resolved: the link is what makes it the environment's own.
    return python.absolute()


def our_code() -> str:
    """A digest of what is installed of parkade."""
    code = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for folder in OUR_FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            code.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return code.hexdigest()


def install(python: Path, packages: Sequence[str]) -> None:
    """Raises `Unavailable` with pip's last word."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    try:
        done = subprocess.run(
            [*command, *packages], capture_output=True, text=True, timeout=PIP_S_MAX
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not end within {PIP_S_MAX} s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable((errors or ["pip failed"])[-1])
