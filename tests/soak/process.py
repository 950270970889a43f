"""The process of a soak: an engine under the mixed load, until it is told otherwise or killed.

    python -m soak.process DIRECTORY (fixed|new) [diagnose]

Each line on its input is a word, answered by one line of JSON: `round` (waits until each kind of
load has had a turn), `sample` (what it holds), `restart` (the engine is stopped and opened again),
`finish` (nothing more is submitted; waits until nothing runs, then stops). With `diagnose` a sample
has what was allocated since the one before, by line.
"""

import ctypes
import gc
import json
import logging
import os
import sys
import threading
import tracemalloc
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.sizes import sizes
from parkade import Engine, feed, guards, limits, progress_events
from soak.application import tasks
from soak.load import Load

__all__ = ["main"]

TOP_LINES = 12


def hurry() -> None:
    """Caches meet their ends, and files their turns, within a minute; all else is as ever."""
    feed.RING_EVENTS = 10_000
    guards.PLANS_MAX = 256
    progress_events.REMEMBERED_MAX = 256
    limits.CHECKPOINT_AGE_MS = 1_000
    limits.CHECKPOINT_JOURNAL_BYTES = 4_000_000
    limits.RETENTION_PAUSE_MS_MAX = 1_000


def give_back() -> None:
    """What the allocator has free goes to the system: else its gaps are taken for growth."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Soaked:
    """The engine of this process, and its load."""

    def __init__(self, path: str, is_ever_new: bool) -> None:
        self.engine = Engine(
            path, shards=4, threads=24, processes=2, keep_done="10s", keep_done_max=3_000,
            keep_dead="10s", index_tags=["campaign"], max_ready=20_000, when_full="wait",
            include=[tasks],
        )  # fmt: skip
        self.told: Counter[str] = Counter()

        @self.engine.on("dead", "breaker_open", "breaker_closed")
        def count(event: Any) -> None:
            self.told[event.kind] += 1

        self.engine.start()
        self.load = Load(self.engine, Path(path), is_ever_new, failed)

    def sample(self) -> dict[str, Any]:
        """Seen by the core thread, which changes most of it."""
        runtime = self.engine.desk("soak").runtime

        def look() -> Counter[str]:
            for _ in range(20):
                try:
                    return sizes(self.engine)
                except RuntimeError:  # another thread has changed a dictionary that was walked
                    continue
            raise AssertionError("no look at the engine in twenty tries")

        held: Counter[str] = runtime.host.call(look, 60.0)
        gc.collect()
        give_back()
        answer = {
            # Not gc.get_objects(): it shows tuples that other threads are still making.
            "blocks": sys.getallocatedblocks(),
            "rounds": self.load.rounds.total(),
            "done": self.engine.stats().done_total,
            "held": held,
        }
        if tracemalloc.is_tracing():
            answer["top"] = self._allocated()
        return answer

    def _allocated(self) -> list[str]:
        shot = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
        )
        before, self._shot = getattr(self, "_shot", shot), shot
        return [str(line) for line in shot.compare_to(before, "lineno")[:TOP_LINES]]

    def round(self) -> dict[str, Any]:
        return self.load.await_round()

    def restart(self) -> dict[str, Any]:
        self.load.gate.shut()
        report = self.engine.stop(drain="30s")
        self.engine.start()
        self.load.gate.open()
        return {"given_back": report.given_back, "zombies": report.zombies}

    def finish(self) -> dict[str, Any]:
        self.load.gate.shut()
        for task in ("far", "quick"):  # a kill came before the load could cancel or resume them
            self.engine.cancel_many(task=task)
        pause = threading.Event()
        for _ in range(600):
            stats = self.engine.stats()
            if not stats.ready and not stats.running and not stats.scheduled:
                break
            pause.wait(0.1)
        waiting = [info.task for info in self.engine.find(state="scheduled", limit=10)]
        waiting += [info.task for info in self.engine.find(state="ready", limit=10)]
        self.engine.stop(drain="30s")
        return {"left": waiting, "running": stats.running, "told": self.told}


def failed(how: str) -> None:
    print(how, file=sys.stderr, flush=True)
    os._exit(3)


def main() -> None:
    path, names, *more = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR)
    hurry()
    if more:
        tracemalloc.start(8)
    soaked = Soaked(path, names == "new")
    print("{}", flush=True)
    acts = {
        "round": soaked.round,
        "sample": soaked.sample,
        "restart": soaked.restart,
        "finish": soaked.finish,
    }
    soaked.load.start()
    for line in sys.stdin:
        print(json.dumps(acts[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
