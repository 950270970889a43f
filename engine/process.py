"""One child process, as its owner has it: started, spoken to, ended, and known to be dead.

Every call is the pool's thread's. The child is a new interpreter, never a fork: a fork would copy
locks that other threads hold. The system ends it with the thread that started it, which is
therefore one that lasts (`parkade.process_pool`).
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from parkade.wire import BadMessage, Frames, ToChild, ToOwner, pack, read_for_owner

__all__ = ["Process", "end_text"]

CHUNK_BYTES = 1 << 18
PROGRAM = (
    "import sys; fileno, owner, sys.path[:] = sys.argv[1], sys.argv[2], sys.argv[3:]; "
    "from parkade.child import main; main(int(fileno), int(owner))"
)


class Process:
    """A child that runs. Raises `OSError` where none can be started.

    `frame_bytes_max` bounds what it may say in one message.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.connection, theirs = socket.socketpair()
        try:
            self.connection.setblocking(False)
            self._popen = _spawn(theirs)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()
        self.pid = self._popen.pid
        self.exit_watch = _watch_exit(self.pid)  # readable once it is dead; None: ask `is_dead`
        self._frames = Frames(frame_bytes_max)
        self._unsent = bytearray()
        self.is_hung_up = False  # its end of the connection is closed

    @property
    def is_dead(self) -> bool:
        """Whether it has ended; asking also lets the system forget it."""
        return self._popen.poll() is not None

    @property
    def exit_code(self) -> int:
        """Of a dead one, as `subprocess` has it: negative for a signal."""
        return self._popen.returncode

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._unsent)

    def send(self, message: ToChild) -> None:
        """Never waits: what the child does not take yet is kept, and sent by `flush`."""
        self._unsent += pack(message)
        self.flush()

    def flush(self) -> None:
        """Sends as much as the child takes now. That it is gone is found out by reading."""
        try:
            while self._unsent:
                del self._unsent[: self.connection.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._unsent.clear()

    def hear(self) -> Iterator[ToOwner]:
        """What it has said; ends when there is no more for now. Raises `BadMessage`, also for a
        message that its end has cut off."""
        while not self.is_hung_up:
            try:
                chunk = self.connection.recv(CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""
            if chunk:
                for body in self._frames.feed(chunk):
                    yield read_for_owner(body)
            else:
                self.is_hung_up = True
                if self._frames.is_cut:
                    raise BadMessage("it ended in the middle of a message")

    def terminate(self) -> None:
        """Asks it to end, by SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Has the system end it."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Gives the descriptors of a dead one back."""
        self.connection.close()
        if self.exit_watch is not None:
            os.close(self.exit_watch)
            self.exit_watch = None

    def _signal(self, number: signal.Signals) -> None:
        # By way of Popen: it does not signal what has been reaped, whose pid may be another's.
        with contextlib.suppress(OSError):
            self._popen.send_signal(number)


def end_text(exit_code: int) -> str:
    """How a process ended: `signal SIGSEGV`, `exit code 7`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def _spawn(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    # The flags of this interpreter, as multiprocessing passes them on to its children.
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
    path = [str(entry) for entry in sys.path]
    words = [sys.executable, *flags, "-P", "-c", PROGRAM]
    return subprocess.Popen(
        [*words, str(theirs.fileno()), str(os.getpid()), *path],
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
    )


def _watch_exit(pid: int) -> int | None:
    """A descriptor that is readable once the process is dead, where the system has such."""
    open_watch: Any = getattr(os, "pidfd_open", None)
    if open_watch is None:
        return None
    with contextlib.suppress(OSError):
        return int(open_watch(pid))
    return None
