"""Two runs of one test write the same bytes: ids, jitter, journals."""

from pathlib import Path

import pytest

from parkade import ConfigError, RetryAfter, RetryPolicy, Snooze, current_attempt
from parkade.testing import Killed, TestEngine


def live_through(path: Path, seed: int = 0) -> list[str]:
    """A bit of everything; the ids of the tickets."""
    with TestEngine(path, seed=seed) as engine:

        @engine.task(retry=RetryPolicy(max_attempts=4))
        def flaky(n: int) -> int:
            number = current_attempt().number
            if n % 5 == 1 and number < 3:
                raise ConnectionError("down")
            if n % 5 == 2 and number == 1:
                raise RetryAfter("3h", "busy")
            if n == 3 and number == 1:
                raise Killed
            if n == 4 and not engine.submitted(later):
                later.options(delay="40d", unique="once").submit(n)
                raise Snooze("2d")
            return n

        @engine.task(key="k-{n}")
        async def later(n: int) -> None:
            await flaky.asubmit(n + 100)

        tickets = engine.submit_many([flaky.call(n) for n in range(20)])
        with pytest.raises(Killed):
            engine.run_until_idle()
        engine.crash()
        engine.run_until_idle(skip_time=True)
        return [ticket.id for ticket in tickets] + [str(engine.clock)]


def journals(path: Path) -> dict[str, bytes]:
    """Every file of every journal."""
    files = [file for file in sorted(path.glob("*/journal/*")) if file.is_file()]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_two_runs_write_the_same_journals_byte_for_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert live_through(first) == live_through(second)
    one, two = journals(first), journals(second)
    assert {name.split("/")[0] for name in one} == {"house", "shard-000", "shard-001"}
    assert one == two


def test_another_seed_gives_other_ids(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert live_through(first, seed=1)[:20] != live_through(second, seed=2)[:20]
    assert journals(first) != journals(second)


def test_a_directory_that_is_there_is_opened_with_fresh_numbers(tmp_path: Path) -> None:
    live_through(tmp_path / "data")
    before = set(journals(tmp_path / "data"))
    with TestEngine(tmp_path / "data"):
        pass
    salts = {name.rsplit("-", 1)[-1] for name in set(journals(tmp_path / "data")) - before}
    assert salts
    assert not salts & {name.rsplit("-", 1)[-1] for name in before}


def test_a_test_engine_takes_a_manual_clock_only(tmp_path: Path) -> None:
    class Other:
        pass

    with pytest.raises(ConfigError, match="ManualClock"):
        TestEngine(tmp_path / "data", clock=Other())  # type: ignore[arg-type]


def test_an_option_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean shards"):
        TestEngine(tmp_path / "data", shard=3)
