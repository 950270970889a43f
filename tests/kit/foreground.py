"""A process with an engine in it that ends in some way: by a signal, without a stop, with its loop.

    python -P -c PROGRAM DIRECTORY TASK

It says what happens in lines on its output; a test waits for those, and for nothing else.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Foreground"]

PROGRAM = """
import asyncio, logging, os, signal, sys, threading
from parkade import Engine

path, task = sys.argv[1:]
engine = Engine(path, shards=2, threads=4, durability="process")
over = threading.Event()


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


@engine.task
def quick(n: int) -> int:
    say("quick", n)
    return n


@engine.task
def brief() -> None:
    say("begun")
    over.wait(0.3)
    say("ended")


@engine.task
def stuck() -> None:
    say("begun")
    threading.Event().wait()


@engine.task(retry=["1h"])
async def on_loop() -> None:
    say("begun")
    await asyncio.Event().wait()


@engine.on("submitted")
def told(event):
    say("event", event.kind, event.task)


class Lines(logging.Handler):
    def emit(self, record):
        say("log", record.getMessage())


logging.getLogger("parkade.engine").addHandler(Lines())
logging.getLogger("parkade.engine").setLevel(logging.INFO)
"""

WAYS = {
    # In the foreground: opened there, then a task is submitted, if one is named.
    "forever": """
def mine(number, frame):
    say("my handler")


def submit():
    while True:
        try:
            engine.stats()
            break
        except Exception:
            over.wait(0.01)
    if task:
        engine.submit(task, {})
    else:
        say("open")


signal.signal(signal.SIGTERM, mine)
threading.Thread(target=submit, daemon=True).start()
engine.run_forever()
say("returned")
signal.raise_signal(signal.SIGTERM)
""",
    # Not in the main thread, and stopped by somebody else.
    "beside": """
before = signal.getsignal(signal.SIGTERM)
running = threading.Thread(target=engine.start().run_forever)
running.start()
assert signal.getsignal(signal.SIGTERM) is before
say("stopped", engine.stop().clean)
running.join()
say("returned")
""",
    # The main thread ends, and nobody has stopped the engine.
    "no stop": """
engine.start()
quick.submit(1).result("20s")
quick.options(delay="1h").submit(2)
if task:
    engine.submit(task, {})
say("main ends")
""",
    # The loop of a caller closes under an attempt.
    "loop": """
async def main():
    await engine.astart()
    await on_loop.asubmit()
    while not (await engine.afind(state="running")).items:
        await asyncio.sleep(0.005)


loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
say("result", quick.submit(7).result("20s"))
(info,) = engine.find(task="on_loop")
say("on_loop", info.state, info.maybe_applied)
say("stopped", engine.stop().clean)
""",
}


class Foreground:
    """One such process. Made in a `with`, killed at its end if it still runs."""

    def __init__(self, path: Path, way: str, task: str = "") -> None:
        program = PROGRAM + WAYS[way]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "error", "-c", program, str(path), task],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, line: str) -> None:
        """Reads on until the process says this."""
        assert self._process.stdout is not None
        for said in self._process.stdout:
            self.lines.append(said.rstrip("\n"))
            if self.lines[-1] == line:
                return
        raise AssertionError(f"it never said {line!r}: {self.lines} {self.errors()}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, patience_s: float = 60.0) -> int:
        """Its exit code, with all that it said until then."""
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        self.lines += rest.splitlines()
        return self._process.wait(patience_s)

    def errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
