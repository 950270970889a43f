"""A PostgreSQL of the bench's own: made in a scratch directory, gone with it.

Its settings are those that it comes with, so each commit is on disk before it is answered. It
refuses to run as root, so that a bench run by root starts it as the user `postgres` or `nobody`.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.environments import Unavailable

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")
PROGRAMS = ("initdb", "pg_ctl", "psql")
PORT = 5432  # of the socket's name alone: it listens on no address
START_S = "60"


@dataclass(frozen=True)
class Server:
    """One that runs, reached through a socket in its directory."""

    binaries: Path
    directory: Path
    pid: int
    account: dict[str, Any]

    def address(self, database: str) -> str:
        """What a client connects to."""
        return f"postgresql://bench@/{database}?host={self.directory}&port={PORT}"

    def create(self, database: str) -> str:
        """A new, empty database; its address."""
        self._ask("postgres", f"CREATE DATABASE {database}")
        return self.address(database)

    def drop(self, database: str) -> None:
        """Takes it away, whoever is still connected."""
        self._ask("postgres", f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def disk_bytes(self, database: str) -> int:
        """What it takes on the disk; the server's log of changes is not in it."""
        return int(self._ask("postgres", f"SELECT pg_database_size('{database}')"))

    def version(self) -> str:
        """As it tells it."""
        return self._ask("postgres", "SHOW server_version").split()[0]

    def _ask(self, database: str, statement: str) -> str:
        command = [self.binaries / "psql", "-AtX", "-d", self.address(database), "-c", statement]
        return checked([str(part) for part in command], self.account).strip()


@contextlib.contextmanager
def running(directory: Path) -> Generator[Server, None, None]:
    """A server over the directory, which must be empty. Raises `Unavailable`."""
    binaries, account = found(), account_for(directory)
    cluster = directory / "cluster"
    settings = f"-c listen_addresses= -c unix_socket_directories={directory} -c port={PORT}"

    def command(program: str, *arguments: str) -> list[str]:
        return [str(binaries / program), "-D", str(cluster), *arguments]

    checked(command("initdb", "-U", "bench", "-A", "trust", "-E", "UTF8"), account)
    log = str(directory / "log")
    try:
        checked(command("pg_ctl", "-w", "-t", START_S, "-l", log, "-o", settings, "start"), account)
        pid = int((cluster / "postmaster.pid").read_text(encoding="ascii").split("\n")[0])
        yield Server(binaries, directory, pid, account)
    finally:
        stop = command("pg_ctl", "-m", "fast", "-w", "stop")
        subprocess.run(stop, capture_output=True, cwd="/", **account)


def found() -> Path:
    """The directory of its programs."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    for pattern in PLACES:
        places += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for place in places:
        if all((place / program).exists() for program in PROGRAMS):
            return place
    raise Unavailable("no PostgreSQL on this machine")


def account_for(directory: Path) -> dict[str, Any]:
    """Whom to run it as: root may not. The directory is handed over."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Unavailable("PostgreSQL refuses to run as root, and there is nobody else")


def checked(command: list[str], account: dict[str, Any]) -> str:
    """What it prints. Raises `Unavailable` with its last word."""
    # stdout of pg_ctl would be kept open by the server it leaves behind.
    is_start = command[-1] == "start"
    where: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if not is_start:
        where = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, text=True, cwd="/", **where, **account)
    if done.returncode != 0:
        said = (done.stderr or "").strip().splitlines()
        raise Unavailable(f"{Path(command[0]).name}: {said[-1] if said else done.returncode}")
    return done.stdout or ""
