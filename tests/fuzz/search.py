"""`make fuzz`: bytes for a target as long as one likes, and the shortest that fails.

    python -m fuzz.search [TARGET|all] SECONDS [SEED]    random bytes, by hypothesis
    python -m fuzz.search TARGET --bytes HEX             one input again
    python -m fuzz.search TARGET SECONDS --guided        by what they reach, where atheris is there

Exit code 1: something failed; the command that repeats it is printed, with the shortest input that
was found.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from fuzz.guided import search_guided

if TYPE_CHECKING:
    from fuzz.targets import Target

__all__ = ["main"]

ROUND_EXAMPLES = 50  # between two looks at the clock
SEED_BITS = 32


def main(arguments: Sequence[str]) -> int:
    """Runs what the command line asks; its exit code."""
    asked = _parser().parse_args(arguments)
    if asked.guided:
        return search_guided(asked.target, asked.seconds)
    from fuzz.targets import TARGETS  # not before, for a guided search watches it being imported

    if asked.bytes is not None:
        TARGETS[asked.target].run(bytes.fromhex(asked.bytes))
        print(f"{asked.target}: nothing is wrong with these bytes")
        return 0
    names = list(TARGETS) if asked.target == "all" else [asked.target]
    first_seed = random.getrandbits(SEED_BITS) if asked.seed is None else asked.seed
    each_s = asked.seconds / len(names)
    found = [_search(name, TARGETS[name], each_s, first_seed) for name in names]
    return 0 if all(found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz.search", description=__doc__)
    parser.add_argument("target", help="one of tests/fuzz/targets.py, or all")
    parser.add_argument("seconds", nargs="?", type=float, default=60)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--bytes", metavar="HEX", help="run this input alone")
    parser.add_argument("--guided", action="store_true", help="search with atheris")
    return parser


def _search(name: str, target: "Target", seconds: float, first_seed: int) -> bool:
    """Rounds of random bytes until the time is over; False at the first that fails."""
    until, tried = time.monotonic() + seconds, 0
    print(f"{name}: {seconds:.0f} s from seed {first_seed} on", flush=True)
    round_seed = first_seed
    while time.monotonic() < until:
        failing = _round(target, round_seed)
        if failing is not None:
            data, error = failing
            print(f"{name}: FAILS with {type(error).__name__}: {error}")
            print(f"again: make fuzz TARGET={name} BYTES={data.hex() or '00'}", flush=True)
            return False
        tried += ROUND_EXAMPLES
        round_seed = (round_seed + 1) % (1 << SEED_BITS)
    print(f"{name}: nothing in {tried} inputs", flush=True)
    return True


def _round(target: "Target", round_seed: int) -> tuple[bytes, BaseException] | None:
    """The shortest input that fails, and with what."""
    failing: list[tuple[bytes, BaseException]] = []

    @seed(round_seed)
    @settings(
        max_examples=ROUND_EXAMPLES,
        deadline=None,
        derandomize=False,
        database=InMemoryExampleDatabase(),
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @given(st.binary(max_size=target.bytes_max))
    def look(data: bytes) -> None:
        try:
            target.run(data)
        except Exception as error:
            failing.append((data, error))
            raise

    try:
        look()
    except BaseException:
        if not failing:
            raise
        return min(failing, key=lambda found: (len(found[0]), found[0]))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
