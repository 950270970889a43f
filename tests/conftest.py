"""What every suite shares: Hypothesis profiles, and seeds that replay a history.

Profiles, by HYPOTHESIS_PROFILE or --hypothesis-profile: `ci` (the default: few examples, the same
ones in every run), `dev` (random, more), `search` (random, very many). No profile has a deadline:
on a busy machine a slow example is no finding.

A test with an argument `seed` runs once per seed: --seeds=N of them from 0 on, or the one that
--seed=S names. --seed also seeds Hypothesis, so one option replays either kind of failure.
"""

import os

import pytest
from hypothesis import settings

from kit.unasked import taken_unasked, watch_for_unasked

settings.register_profile(
    "ci",
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "dev",
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
)
settings.register_profile(
    "search",
    max_examples=5_000,
    stateful_step_count=200,
    deadline=None,
    print_blob=True,
)
watch_for_unasked(is_kept=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

SEEDS_DEFAULT = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --seed, --seeds and --workers."""
    group = parser.getgroup("parkade")
    group.addoption("--seed", type=int, default=None, help="replay the one history of this seed")
    group.addoption(
        "--workers", type=int, default=1, help="processes that share the histories (default: 1)"
    )
    group.addoption(
        "--seeds",
        type=int,
        default=SEEDS_DEFAULT,
        help=f"how many histories a simulation runs (default: {SEEDS_DEFAULT})",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hand --seed on to Hypothesis, unless it was given one of its own."""
    seed = config.getoption("--seed")
    if seed is not None and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a `seed` once per seed, unless it brings its own."""
    if "seed" not in metafunc.fixturenames or brings_seeds(metafunc):
        return
    one: int | None = metafunc.config.getoption("--seed")
    count: int = metafunc.config.option.seeds
    metafunc.parametrize("seed", range(count) if one is None else [one])


def brings_seeds(metafunc: pytest.Metafunc) -> bool:
    """Whether the test names its seeds in a parametrize mark."""
    marks = metafunc.definition.iter_markers("parametrize")
    return any("seed" in str(mark.args[0]).replace(",", " ").split() for mark in marks)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test whose engine has met an error that nobody asked for, and gone on."""
    found = taken_unasked()
    if found:
        pytest.fail("\n".join(["an engine met an error of its own code", *found]), pytrace=False)
