"""Many histories, in several processes, and what they came to.

    make simulate SEEDS=2000        many histories
    make simulate SEED=17           the one of this seed, shrunk to a short script if it fails

Not a suite of pytest: its watch for hanging tests dumps the stacks of running threads after a
minute, and CPython may crash while it does. A history that does not end fails by itself.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context

from simulation.history import STEPS_MIN, fails, history_of, run, shrink

__all__ = ["few", "survey", "tell", "text_of"]

SEEDS_PER_NOTE = 100
PART, PARTS_PER_PROCESS = 4, 5  # an engine that was killed leaves some memory behind
# What a hundred histories must have met at least, or they show little.
MINIMA_PER_100 = {
    "steps": 80_000,
    "steps during passes": 4_000,
    "answers": 1_800,
    "attempts": 2_000,
    "crashes": 90,
    "torn writes": 150,
    "lost writes": 70,
    "failed flushes": 10,
    "disk commits": 2_400,
    "disk failed commits": 35,
    "completions during sweeps": 120,
    "completions during checkpoints": 100,
    "recovered shards": 600,
    "steps back": 10,
    "clocks set while away": 20,
    "disk map growths": 20,
    "full disks": 20,
    "damaged shards": 10,
    "listings": 20,
    "rests where all is well": 800,
    "written by callers": 100,
    "frames by the thread": 3_000,
    "frames by the core": 500,
    "frames by callers": 100,
}


def survey(
    seeds: Sequence[int], workers: int = 1, note: Callable[[int], None] = lambda _: None
) -> tuple[Counter[str], int | None]:
    """What the histories of these seeds come to, and the first of them that fails, if one does.

    Each history is one process's from start to end. `note` is told how many are done.
    """
    totals: Counter[str] = Counter()
    for done, (seed, counts) in enumerate(_each(seeds, workers), 1):
        if counts is None:
            return totals, seed
        totals += counts
        note(done)
    return totals, None


def _each(seeds: Sequence[int], workers: int) -> Iterator[tuple[int, Counter[str] | None]]:
    if len(seeds) == 1:
        yield seeds[0], _counts_of(seeds[0])
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(["simulation.history"])
    # Not a ProcessPoolExecutor: that of CPython 3.11 may wait for ever for processes it has ended.
    with context.Pool(workers, maxtasksperchild=PARTS_PER_PROCESS) as pool:
        yield from zip(seeds, pool.imap(_counts_of, seeds, chunksize=PART), strict=True)


def _counts_of(seed: int) -> Counter[str] | None:
    before_s = time.process_time()
    try:
        counts = run(history_of(seed)).counts
    except AssertionError:
        return None
    assert counts["steps"] >= STEPS_MIN
    counts["CPU ms"] = round(1_000 * (time.process_time() - before_s))
    return counts


def few(totals: Counter[str], count: int) -> dict[str, tuple[int, int]]:
    """What so many histories have met too seldom: how often, and how often they should."""
    if count < 100:
        return {}
    minima = {name: minimum * count // 100 for name, minimum in MINIMA_PER_100.items()}
    return {name: (totals[name], least) for name, least in minima.items() if totals[name] < least}


def text_of(totals: Counter[str], count: int) -> str:
    """The totals in one paragraph, and what a history took."""
    listed = ", ".join(f"{number:,} {name}" for name, number in sorted(totals.items()))
    steps, cpu_ms = totals["steps"] // count, totals["CPU ms"] // count
    return f"{count} histories: {listed}\n{steps} steps and {cpu_ms} ms of CPU each"


def tell(seed: int) -> str:
    """Of a seed that fails: why, and the shortest script found that does."""
    history = history_of(seed)
    try:
        run(history)
    except AssertionError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        why = f"{type(cause).__name__}: {cause}"
    else:
        return f"seed {seed} fails in another process, and not in this one"
    shorter = shrink(history, fails)
    listed = "\n".join(f"    {action.name} {action.number}" for action in shorter.actions)
    return (
        f"seed {seed} fails; replay it: make simulate SEED={seed}\n{why[:2_000]}\n"
        f"{history.options}, shrunk to {len(shorter.actions)} actions:\n{listed}"
    )


def main() -> int:
    """The command: 0 if every history ended well."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many, from 0 on")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    seeds = range(given.seeds) if given.seed is None else [given.seed]
    begun_s = time.monotonic()

    def note(done: int) -> None:
        if done % SEEDS_PER_NOTE == 0:
            print(f"{done:>6} histories, {time.monotonic() - begun_s:.0f} s", flush=True)

    totals, failing = survey(seeds, given.workers if len(seeds) > 1 else 1, note)
    if failing is not None:
        print(tell(failing))
        return 1
    took_s = time.monotonic() - begun_s
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(text_of(totals, len(seeds)))
    print(f"{took_s:.0f} s in {given.workers} processes; the largest had {peak_mb} MiB")
    missing = few(totals, len(seeds))
    for name, (met, least) in missing.items():
        print(f"met too seldom: {name}, {met} times and at least {least} expected")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
