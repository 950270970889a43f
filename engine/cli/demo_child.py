"""The processes of `parkade demo`, each a `python -m parkade.cli.demo_child`.

    run DIR LOG TICKETS   submits, tells what was acknowledged, runs what is due, until it is killed
    resume DIR LOG        opens what is left, tells what is there, runs what is due to its end
    measure DIR           opens the directory after an empty one, and tells what memory that took

They speak in lines on standard output: a letter, a space, ids or JSON.
"""

import gc
import hashlib
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from parkade.asking import Request
from parkade.asks import PageOf, ShardPage
from parkade.attempt import Attempt
from parkade.calls import Call
from parkade.clock import SystemClock
from parkade.engine import Engine
from parkade.finding import NEWEST
from parkade.policies import Backoff, RetryPolicy
from parkade.tasks import SyncTask

__all__ = ["ACCEPTED", "CHECKSUM", "DUE_MARK", "FACTS", "HAS", "PROGRESS", "digest_of", "main"]

ACCEPTED, HAS, PROGRESS, FACTS = "A", "H", "P", "F"
DUE_MARK = "!"  # before the id of a ticket that is due within seconds
CHECKSUM = "checksum"

CHUNK = 500
DUE_EVERY = 50  # one ticket in so many is due within seconds
DUE_WITHIN_S = 4.0
SLEEP_S_MIN, SLEEP_S_MAX = 3_600, 3 * 365 * 86_400
WAIT_MS = 80  # what a handler waits for somebody else, as most handlers do
THREADS = 64
PAGE = 1_000
GIVE_UP_MS = 60_000

_clock = SystemClock()


def digest_of(number: int) -> str:
    """What the handler works out, and the parent checks."""
    text = f"ticket {number} of the demonstration, which is a text of some length\n" * 500
    return hashlib.sha256(text.encode()).hexdigest()


class Workshop:
    """An engine with the two tasks of the demonstration, and a log of what its handlers did."""

    def __init__(self, path: str, log_path: str) -> None:
        self.engine = Engine(path, threads=THREADS)
        self.started = self.ended = 0
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        retry = RetryPolicy(5, backoff=Backoff("200ms", cap="500ms"))
        self.checksum: SyncTask[[int], str] = self.engine.task(name=CHECKSUM, retry=retry)(
            self._checksum
        )
        self.remind: SyncTask[[str], None] = self.engine.task(name="remind")(_remind)

    def _checksum(self, attempt: Attempt, number: int) -> str:
        """Real work that leaves a trace: two lines in the log, written at once each."""
        self.started += 1
        self._note(f"start {attempt.ticket_id} {attempt.number}")
        digest = digest_of(number)
        _pause(WAIT_MS)
        self._note(f"end {attempt.ticket_id} {number} {digest}")
        self.ended += 1
        return digest

    def say_progress(self) -> None:
        _say(PROGRESS, f"{self.ended} {self.started - self.ended}")

    def say_rest(self) -> int:
        """How many that are due are not done yet; it is said as well."""
        counts = self.engine.stats().by_task.get(CHECKSUM, {})
        waiting = counts.get("scheduled", 0) + counts.get("running", 0)
        _say(PROGRESS, f"{counts.get('done', 0)} {waiting}")
        return waiting

    def _note(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode())

    def calls(self, first: int) -> Iterator[tuple[bool, "Call[str] | Call[None]"]]:
        """(whether it is due within seconds, the call), of a chunk."""
        for number in range(first, first + CHUNK):
            if number % DUE_EVERY == 0:
                delay_s = number // DUE_EVERY % 100 / 100 * DUE_WITHIN_S
                yield True, self.checksum.options(delay=delay_s).call(number)
            else:
                delay_s = SLEEP_S_MIN + number * 7_919 * 101 % (SLEEP_S_MAX - SLEEP_S_MIN)
                yield False, self.remind.options(delay=delay_s).call(f"customer {number}")


def run(path: str, log_path: str, tickets: int) -> None:
    """Submits more than `tickets`: the parent kills it on the way."""
    workshop = Workshop(path, log_path)
    with workshop.engine:
        for first in range(0, 4 * tickets + CHUNK, CHUNK):
            calls = list(workshop.calls(first))
            accepted = workshop.engine.submit_many([call for _, call in calls])
            ids = [
                f"{DUE_MARK if is_due else ''}{ticket.id}"
                for (is_due, _), ticket in zip(calls, accepted, strict=True)
            ]
            _say(ACCEPTED, " ".join(ids))
            workshop.say_progress()
        while True:  # a line that nobody reads ends it
            _pause(20)
            workshop.say_progress()


def resume(path: str, log_path: str) -> None:
    """Opens, tells every id that is there, and goes on until nothing that is due is left."""
    workshop = Workshop(path, log_path)
    engine, begun_ms = workshop.engine, _clock.monotonic_ms()
    with engine:
        opened_ms = _clock.monotonic_ms() - begun_ms
        lost = engine.desk("demo").runtime.lost_at_open
        _tell({"opened_ms": opened_ms, "lost": lost})
        for ids in _ids_in(engine):
            _say(HAS, " ".join(ids))
            workshop.say_rest()
        until_ms = _clock.monotonic_ms() + GIVE_UP_MS
        while workshop.say_rest() and _clock.monotonic_ms() < until_ms:
            _pause(100)


def measure(path: str) -> None:
    """What it costs to have the directory open, beyond what an empty one costs."""
    with (
        tempfile.TemporaryDirectory(prefix="parkade-") as empty,
        Engine(os.path.join(empty, "data"), threads=THREADS),
    ):
        gc.collect()
        empty_bytes = _memory_bytes()
    engine, begun_ms = Engine(path, threads=THREADS), _clock.monotonic_ms()
    with engine:
        opened_ms = _clock.monotonic_ms() - begun_ms
        gc.collect()
        _tell(
            {
                "opened_ms": opened_ms,
                "memory_bytes": max(0, _memory_bytes() - empty_bytes),
                "asleep": engine.stats().scheduled,
            }
        )


def _ids_in(engine: Engine) -> Iterator[list[str]]:
    """Every id that the engine knows. `engine.find` would tell far more of each."""
    desk = engine.desk("demo")
    for shard in range(desk.runtime.shard_count):
        before: int | None = NEWEST
        while before is not None:
            asked = PageOf(indexes=(), before=before, limit=PAGE)
            page: ShardPage = desk.ask(Request("demo", "demo", [(shard, asked)], _only))
            yield [desk.runtime.id_of(ticket) for ticket in page.tickets]
            before = page.last


def _only(answers: list[Any]) -> Any:
    return answers[0]


def _remind(who: str) -> None:
    """Never due while the demonstration runs."""


def _pause(ms: int) -> None:
    _clock.wait(threading.Event(), ms)


def _memory_bytes() -> int:
    """What this process alone has in memory; where that is not told, the most it ever had."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1_024
    except OSError:
        pass
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1_024


def _say(kind: str, text: str) -> None:
    print(kind, text, flush=True)


def _tell(facts: dict[str, object]) -> None:
    _say(FACTS, msgspec.json.encode(facts).decode())


def main(args: list[str]) -> None:
    """See the head of the module."""
    match args:
        case ["run", path, log_path, tickets]:
            run(path, log_path, int(tickets))
        case ["resume", path, log_path]:
            resume(path, log_path)
        case ["measure", path]:
            measure(path)
        case _:
            raise SystemExit(f"unknown: {args}")


if __name__ == "__main__":
    main(sys.argv[1:])
