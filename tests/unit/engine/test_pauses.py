"""Pauses: what is held, until when, and what a crash leaves of them."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from parkade import BlockingInEventLoop, ConfigError, NaiveDatetime
from parkade.testing import TestEngine


@pytest.fixture
def engine() -> Iterator[TestEngine]:
    with TestEngine() as engine:
        engine.task(name="mail", target="smtp", aliases=["post"])(lambda: None)
        engine.task(name="other", target="smtp")(lambda: None)
        engine.task(name="free")(lambda: None)
        yield engine


def submit_all(engine: TestEngine) -> None:
    for name in ("mail", "other", "free"):
        engine.submit(name, {})


def test_a_paused_task_is_held_until_it_is_resumed_and_no_other_is(engine: TestEngine) -> None:
    engine.pause(task="mail", reason="a bad template")
    submit_all(engine)
    assert engine.run_until_idle(skip_time=True).done == 2
    engine.resume(task="mail")
    assert engine.run_until_idle().done == 1
    engine.resume(task="mail")  # twice is once


def test_a_paused_target_holds_every_task_that_calls_it(engine: TestEngine) -> None:
    engine.pause(target="smtp")
    submit_all(engine)
    assert engine.run_until_idle().done == 1
    engine.resume(target="smtp")
    assert engine.run_until_idle().done == 2


def test_a_pause_with_an_end_ends_by_itself(engine: TestEngine) -> None:
    engine.pause(task="mail", until=engine.clock.now() + timedelta(hours=1))
    submit_all(engine)
    assert engine.run_until_idle().done == 2
    engine.clock.advance("59m")
    assert engine.run_until_idle().done == 0
    engine.clock.advance("1m")
    assert engine.run_until_idle().done == 1


def test_a_task_of_an_older_name_is_paused_with_it(engine: TestEngine) -> None:
    engine.pause(task="post")
    engine.submit("mail", {})
    assert engine.run_until_idle().done == 0
    engine.resume(task="mail")
    assert engine.run_until_idle().done == 1


def test_pauses_outlive_a_crash_and_a_stop(tmp_path: Path) -> None:
    engine = TestEngine(tmp_path / "data")
    engine.task(name="mail", target="smtp")(lambda: None)
    with engine:
        engine.pause(target="smtp", reason="their maintenance")
        engine.pause(task="mail", until=engine.clock.now() + timedelta(minutes=5))
        engine.submit("mail", {})
        engine.crash()
        assert engine.run_until_idle().done == 0
    with engine:
        engine.clock.advance("1h")
        assert engine.run_until_idle().done == 0
        engine.resume(target="smtp")
        assert engine.run_until_idle().done == 1
        engine.crash()
        engine.submit("mail", {})
        assert engine.run_until_idle().done == 1


def test_a_task_that_nobody_knows_is_paused_and_the_log_says_so(
    engine: TestEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.pause(task="post")
    engine.pause(target="nobody")
    assert caplog.messages == []
    engine.pause(task="male")
    [said] = caplog.messages
    assert 'engine.pause(task="male")' in said and "no ticket has it" in said
    engine.task(name="male")(lambda: None)
    engine.submit("male", {})
    assert engine.run_until_idle().done == 0


def test_what_cannot_be_paused_is_refused(engine: TestEngine) -> None:
    with pytest.raises(ConfigError, match="one of them"):
        engine.pause()
    with pytest.raises(ConfigError, match="one of them"):
        engine.resume(task="mail", target="smtp")
    with pytest.raises(NaiveDatetime):
        engine.pause(task="mail", until=datetime(2030, 1, 1))
    with pytest.raises(ConfigError):
        engine.pause(task="mail", reason=None)  # type: ignore[arg-type]


def test_an_operator_on_an_event_loop_is_told_how_to_do_it(engine: TestEngine) -> None:
    @engine.task
    async def pausing() -> None:
        engine.pause(task="mail")

    pausing.options(retry=1).submit()
    drained = engine.run_until_idle()
    [raised] = drained.errors
    assert isinstance(raised.error, BlockingInEventLoop)
    assert "asyncio.to_thread" in str(raised.error)
