"""One stage of one queue, in a process and an environment of its own: prints one JSON line.

    python -m bench.peers.play QUEUE STAGE '{"directory": …, "seconds": …, …}'

submit   one by one, for some seconds
bulk     as many in one call as the API takes, for some seconds
lives    submitted and run: from the first submit to the last end
start    one at a time, idle in between: from before the submit to the handler
wake     so many due at one moment: from that moment to the last end
load     so many due over a year, and an orderly close
rest     the same directory opened again: until it runs a job, and what it holds and burns idle
crash    runs jobs until somebody kills it
after    the same directory opened again: runs what is left

Handlers do nothing but note that they ran. What is not offered is an answer, not a failure.
"""

import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import Any

from bench.peers.driver import Driver, NotOffered, Place
from bench.peers.processes import cpu_seconds, own_bytes

PAYLOAD_BYTES = 1_000
CHUNK = 1_000
LIVES_MAX = 100_000
PAUSE_S = 0.02  # longer than any worker here sleeps between two looks
YEAR_S, DAY_S = 31_536_000.0, 86_400.0
CRASH_S = 0.001  # what a handler takes that may be killed

Figures = dict[str, Any]


class Runs:
    """Notes which jobs have run, and tells when so many have."""

    def __init__(self) -> None:
        self.ended_s: list[float] = []
        self._target = 0
        self._reached = threading.Event()

    def note(self, _: str) -> None:
        """The handler."""
        self.ended_s.append(time.perf_counter())
        if len(self.ended_s) >= self._target:
            self._reached.set()

    def expect(self, more: int) -> None:
        """Begins to count: so many beyond those that have run."""
        self._target = len(self.ended_s) + more
        self._reached.clear()

    def await_all(self, seconds: float) -> bool:
        """Whether they ran within so many seconds."""
        return self._reached.wait(seconds) or len(self.ended_s) >= self._target


def payload(number: int) -> str:
    """A body of the usual size that begins with its number."""
    return f"{number:09d} ".ljust(PAYLOAD_BYTES, "x")


def payloads(first: int, count: int) -> list[str]:
    """So many bodies, numbered from there."""
    return [payload(number) for number in range(first, first + count)]


def put(driver: Driver, jobs: Sequence[str], dues: Sequence[float] | None = None) -> None:
    """The fastest durable way that the queue has."""
    if driver.has_bulk:
        driver.submit_bulk(jobs, dues)
    else:
        driver.submit_each(jobs, dues)


def submit(driver: Driver, asked: Figures) -> Figures:
    """One by one."""
    driver.submit_each(payloads(0, 20))
    micros: list[float] = []
    while sum(micros) < asked["seconds"] * 1e6:
        micros += driver.submit_each(payloads(len(micros), 20))
    return {
        "submit_per_s": 1e6 * len(micros) / sum(micros),
        "submit_us_p50": quantile(micros, 0.5),
    }


def bulk(driver: Driver, asked: Figures) -> Figures:
    """A thousand in a call."""
    driver.submit_bulk(payloads(0, CHUNK))
    jobs, count, start_s = payloads(0, CHUNK), 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < asked["seconds"]:
        driver.submit_bulk(jobs)
        count += CHUNK
    return {"bulk_per_s": count / elapsed_s}


def lives(driver: Driver, asked: Figures) -> Figures:
    """As many as take about the seconds asked for, by a trial before."""
    runs = Runs()
    driver.work(runs.note)
    least, patience = asked["trial"], asked["patience"]
    rate = lived_per_s(driver, runs, least, patience)
    rate = lived_per_s(driver, runs, max(least, int(rate / 4)), patience)
    count = min(LIVES_MAX, max(least, int(rate * asked["seconds"])))
    return {"lives_per_s": lived_per_s(driver, runs, count, patience), "lives": count}


def lived_per_s(driver: Driver, runs: Runs, count: int, patience_s: float) -> float:
    """So many lives, and how many a second that was."""
    before = len(runs.ended_s)
    runs.expect(count)
    jobs = payloads(before, count)
    start_s = time.perf_counter()
    for first in range(0, count, CHUNK):
        put(driver, jobs[first : first + CHUNK])
    if not runs.await_all(patience_s):
        raise TimeoutError(f"{len(runs.ended_s) - before} of {count} ran in {patience_s} s")
    while not driver.is_settled(len(runs.ended_s)):
        time.sleep(0.001)
    return count / (time.perf_counter() - start_s)


def start(driver: Driver, asked: Figures) -> Figures:
    """How soon a handler runs in a queue that has nothing else to do."""
    runs = Runs()
    driver.work(runs.note)
    lived_per_s(driver, runs, 1, asked["patience"])
    taken_ms: list[float] = []
    for number in range(asked["starts"]):
        # Not always at the same point of a poll.
        time.sleep(PAUSE_S * (1 + random.random()))
        runs.expect(1)
        before_s = time.perf_counter()
        driver.submit_each([payload(number)])
        if not runs.await_all(asked["patience"]):
            raise TimeoutError("a job did not run")
        taken_ms.append(1e3 * (runs.ended_s[-1] - before_s))
    return {"start_ms_p50": quantile(taken_ms, 0.5), "start_ms_p99": quantile(taken_ms, 0.99)}


def wake(driver: Driver, asked: Figures) -> Figures:
    """All submitted before they are due, the worker running when they are."""
    due = submit_crowd(driver, asked)
    runs = Runs()
    runs.expect(asked["crowd"])
    driver.work(runs.note)
    since_s = time.perf_counter() + due - time.time()
    is_late = time.time() > due
    runs.await_all(due - time.time() + asked["patience"])
    ran = len(runs.ended_s)
    last_s = max(runs.ended_s, default=since_s)
    return {
        "wake_s": last_s - since_s,
        "wake_per_s": ran / max(1e-3, last_s - since_s),
        "wake_ran": ran,
        "wake_early": sum(ended_s < since_s - 0.001 for ended_s in runs.ended_s),
        "wake_was_late": is_late,
    }


def submit_crowd(driver: Driver, asked: Figures) -> float:
    """Submits so many for one moment, which leaves time to start a worker; the moment."""
    if not driver.has_delays:
        raise NotOffered("no delays")
    count, trial = asked["crowd"], asked["trial"]
    each_s = 0.0
    for first in (count, count + trial):  # the first trial makes what the second finds
        start_s = time.perf_counter()
        put(driver, payloads(first, trial), [time.time() + YEAR_S] * trial)
        each_s = (time.perf_counter() - start_s) / trial
    due = float(round(time.time() + asked["lead_s"] + 1.6 * each_s * count))
    for first in range(0, count, CHUNK):
        jobs = payloads(first, min(CHUNK, count - first))
        put(driver, jobs, [due] * len(jobs))
    return due


def load(driver: Driver, asked: Figures) -> Figures:
    """As many sleepers as were asked for, or as fit into the time; each chunk is due in its own."""
    if not driver.has_delays:
        raise NotOffered("no delays")
    now, dues = time.time(), random.Random(7)
    loaded, start_s = 0, time.perf_counter()
    while loaded < asked["sleepers"] and time.perf_counter() - start_s < asked["load_s"]:
        due = now + dues.uniform(DAY_S, YEAR_S)
        put(driver, payloads(loaded, CHUNK), [due + 0.001 * n for n in range(CHUNK)])
        loaded += CHUNK
    return {"asleep": loaded, "load_per_s": loaded / (time.perf_counter() - start_s)}


def rest(driver: Driver, asked: Figures) -> Figures:
    """With its worker as in every other stage: what is idle here is what was prompt there."""
    runs = Runs()
    runs.expect(1)
    start_s = time.perf_counter()
    driver.open()
    driver.work(runs.note)
    driver.submit_each([payload(0)])
    runs.await_all(asked["patience"])
    ready_s = time.perf_counter() - start_s
    time.sleep(asked["rest_s"])
    gc.collect()
    server = asked["server"]
    before_s = cpu_seconds(server)
    time.sleep(asked["seconds"])
    burned_s = cpu_seconds(server) - before_s
    return {
        "ready_s": ready_s,
        "held_mb": own_bytes(server) / 1e6,
        "idle_cpu_percent": 100 * burned_s / asked["seconds"],
    }


def crash(driver: Driver, asked: Figures) -> Figures:
    """Runs until it is killed; `due` says whether the jobs are a crowd that was asleep."""
    count = asked["crowd"]
    log = Log(asked["log"])
    if asked["is_crowd"]:
        submit_crowd(driver, asked)
    else:
        for first in range(0, count, CHUNK):
            put(driver, payloads(first, min(CHUNK, count - first)))
    log.write("ready\n")
    driver.work(log.note, is_blocking=True)
    time.sleep(asked["patience"])
    return {}


def after(driver: Driver, asked: Figures) -> Figures:
    """What the next process does with what was left: until all have run, or for so long."""
    driver.open()
    driver.work(Log(asked["log"]).note, is_blocking=True)
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < asked["patience"]:
        ended = set(ended_numbers(Path(asked["log"])))
        if len(ended) >= asked["crowd"]:
            break
        time.sleep(0.05)
    ran = ended_numbers(Path(asked["log"]))
    return {"lost": asked["crowd"] - len(set(ran)), "twice": len(ran) - len(set(ran))}


class Log:
    """A file that says which handlers ended, whatever becomes of the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, body: str) -> None:
        """The handler: takes a moment, then says that it ended."""
        time.sleep(CRASH_S)
        self.write(f"{int(body[:9])}\n")

    def write(self, line: str) -> None:
        """Adds a line; short enough to be written whole."""
        os.write(self._fd, line.encode())


def ended_numbers(log: Path) -> list[int]:
    """The jobs that ended, in order; sleepers of a trial have greater numbers and are not due."""
    lines = log.read_text(encoding="ascii").split("\n")[:-1]
    return [int(line) for line in lines if line.isdigit()]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so large a share of all lies."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


STAGES: dict[str, Callable[[Driver, Figures], Figures]] = {
    stage.__name__: stage for stage in (submit, bulk, lives, start, wake, load, rest, crash, after)
}
OPENS_ITSELF = {"rest", "after"}  # the open is a part of what is measured


def driver_of(queue: str) -> type[Driver]:
    """The one driver in the queue's module."""
    module = import_module(f"bench.peers.drivers.{queue}")

    def found() -> Iterator[type[Driver]]:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Driver) and not isabstract(value):
                yield value

    (driver,) = found()
    return driver


def main(argv: list[str]) -> int:
    """Plays one stage and prints what came of it."""
    queue, stage, given = argv
    asked: Figures = json.loads(given)
    place = Place(Path(asked["directory"]), asked["address"], asked["server"])
    kind = driver_of(queue)
    figures: Figures = {"settings": kind.settings}
    driver = kind(place)
    try:
        if stage not in OPENS_ITSELF:
            driver.open()
        figures |= STAGES[stage](driver, asked)
    except NotOffered as lack:
        figures["lacks"] = str(lack)
    print(json.dumps(figures), flush=True)
    if stage == "load":
        driver.close()
    # Workers that are still busy, and loops that are still awaited, are of no interest any more.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
