"""Tasks for child processes, which import them from here: `declare` registers them elsewhere too.

A child says what it does through named pipes (FIFOs) in the directory that it is given: whoever
opens one for reading waits until the child opens it for writing.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from parkade import Attempt, Breaker, ConfigError, EngineClosed, Fail, PayloadError, Tasks

__all__ = ["tasks"]

tasks = Tasks()


@tasks.task(where="process")
def add(a: int, b: int) -> int:
    return a + b


@tasks.task(where="process")
def who(attempt: Attempt) -> tuple[int, int, str]:
    return os.getpid(), attempt.number, attempt.ticket_id


@tasks.task(where="process", retry=1)
def break_down(word: str) -> None:
    raise ValueError(f"no {word} here")


@tasks.task(where="process", retry=1)
def give_up() -> None:
    raise Fail("never", order=7)


@tasks.task(where="process", retry=1)
def large(size: int) -> bytes:
    return bytes(size)


@tasks.task(where="process", retry=1)
def leave(code: int) -> None:
    os._exit(code)


@tasks.task(where="process", retry=1)
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@tasks.task(where="process", retry=1)
def hang(came: str, is_deaf: bool = False) -> None:
    if is_deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(came, os.getpid())
    threading.Event().wait()


@tasks.task(where="process", retry=1)
def look(attempt: Attempt, came: str) -> str:
    say(came, os.getpid())
    pause = threading.Event()
    while not attempt.cancelled:
        pause.wait(0.005)
    reason = attempt.cancel_reason
    attempt.raise_if_cancelled()
    return str(reason)


@tasks.task(where="process", retry=1)
def babble() -> None:
    """Says what is no message, on every descriptor that may be the owner's."""
    for fd in range(3, 64):
        try:
            os.write(fd, b"\xff" * 64)
        except OSError:
            continue
    threading.Event().wait()


@tasks.task(where="process", retry=1)
def surroundings() -> dict[str, object]:
    files = [os.path.realpath(f"/dev/fd/{name}") for name in os.listdir("/dev/fd")]
    return {
        "argv": list(sys.argv),
        "path": list(sys.path),
        "sigint": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "fds": len([file for file in files if ".so" not in file]),  # some libffi keeps its own open
        "thread": threading.current_thread() is threading.main_thread(),
    }


def say(fifo: str, number: int) -> None:
    Path(fifo).write_text(f"{number}\n", encoding="utf-8")


@tasks.task(where="process", retry=1)
def parent(attempt: Attempt, count: int, word: str = "") -> list[str]:
    """Children with and without a unique, and a word to raise."""
    children = [attempt.submit(add.call(n, n)) for n in range(count)]
    children.append(attempt.submit(add.options(unique="only").call(count, count)))
    if word:
        raise (Fail(word) if word == "fail" else ValueError(word))
    return [child.id for child in children]


@tasks.task(where="process", retry=1)
def parent_of_too_many(attempt: Attempt) -> str:
    try:
        attempt.submit(add.options(unique="u", on_conflict="error").call(1, 1))
    except ConfigError as error:
        told = str(error)
    child = attempt.submit(add.call(1, 1))
    try:
        child.info()
    except EngineClosed as error:
        return f"{told} {error}"
    raise AssertionError("the engine is open here")


@tasks.task(where="process")
def stumble() -> None:
    raise ValueError("once more")


@tasks.task(where="process", retry=1, target="there", breaker=Breaker("there", trip_on=(OSError,)))
def call_out(is_down: bool) -> None:
    raise OSError("down") if is_down else ValueError("wrong")


@tasks.task(where="process", retry=[0.001])
def resume(attempt: Attempt) -> tuple[int, int]:
    """Dies in its first attempt, once it has saved how far it is."""
    begun = attempt.checkpoint(int, 0)
    attempt.save_checkpoint(begun + 7)
    again = attempt.checkpoint(int, 0)
    if not begun:
        os._exit(1)
    return begun, again


@tasks.task(where="process", retry=1)
def tell(attempt: Attempt, came: str) -> None:
    for _ in attempt.track(range(3), message="parts"):
        continue
    attempt.save_checkpoint(None)
    say(came, os.getpid())
    pause = threading.Event()
    while not attempt.cancelled:
        pause.wait(0.005)


@tasks.task(where="process", retry=1)
def save_too_much(attempt: Attempt) -> str:
    try:
        attempt.save_checkpoint(bytes(1_000_001))
    except PayloadError as error:
        return str(error)
    raise AssertionError("it was taken")


@tasks.task(where="process", retry=1, lease="1m")
def beat(attempt: Attempt, came: str, is_silent: bool) -> None:
    say(came, os.getpid())
    pause = threading.Event()
    while is_silent or not attempt.cancelled:
        pause.wait(0.005)
        if not is_silent:
            attempt.heartbeat()


def not_decorated() -> None: ...
