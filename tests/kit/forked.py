"""What `parkade.apart` starts as a program, run in a fork: the start of an interpreter is saved."""

import importlib
import json
import os
import signal
import sys
import traceback
from typing import IO, Any

from parkade.apart import serve_lines

__all__ = ["ForkedPopen"]


class ForkedPopen:
    """As much of `subprocess.Popen` as `lines_apart` uses. The process must have one thread."""

    def __init__(self, command: list[str], *, stderr: IO[bytes], **_: Any) -> None:
        module, asked = command[2], command[3]
        assert command[1] == "-m" and json.loads(asked)
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(child_in, 0)
            os.dup2(child_out, 1)
            os.dup2(stderr.fileno(), 2)
            for each in (child_in, to_child, from_child, child_out):
                os.close(each)
            _serve(module, asked)
        os.close(child_in)
        os.close(child_out)
        self.stdin = os.fdopen(to_child, "wb")
        self.stdout = os.fdopen(from_child, "rb")

    def wait(self) -> int:
        if self._code is None:
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve(module: str, asked: str) -> None:
    code = 1
    try:
        sys.argv = [module, asked]
        sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
        serve_lines(importlib.import_module(module)._say)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
