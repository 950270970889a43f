"""An engine of another user: neither its socket nor its files answer whoever has no rights."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kit.owners import OwnerProcess

# What is imported late may not be readable for nobody, so all of it is imported first.
PROGRAM = """
import os, sys
from click.testing import CliRunner
from parkade.cli.app import cli
from parkade.control import ControlClient, ControlError
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    ControlClient(sys.argv[1] + "/control.sock").call("status")
except ControlError as error:
    print(error.code, error)
for verb in ("status", "ls", "stat", "export"):
    done = CliRunner().invoke(cli, ["--dir", sys.argv[1], verb])
    print(verb, done.exit_code, done.output.strip())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to be")
def test_an_engine_of_another_user_is_neither_asked_nor_read_behind_its_back() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "data"
        with OwnerProcess(path) as owner:
            owner.submit("note", 3, "1h")
            for each in [path, *path.rglob("*")]:
                if not each.is_socket():
                    each.chmod(0o755 if each.is_dir() else 0o644)
            socket_mode = (path / "control.sock").stat().st_mode & 0o777
            done = subprocess.run(
                [sys.executable, "-P", "-c", PROGRAM, str(path)],
                capture_output=True, text=True, check=False, timeout=120,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
    assert socket_mode == 0o600
    told = done.stdout.splitlines()
    assert told[0].startswith("unreachable") and "Permission denied" in told[0], done.stderr
    answers = told[1:]
    assert len(answers) == 4
    for answer in answers:
        assert answer.split()[1] == "3", answer
        assert "open in an engine of another user" in answer and "[PK-111]" in answer
