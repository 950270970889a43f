"""Attempts are made for who asks for them, and go when their handlers have ended."""

import contextvars
import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kit.attempts import AttemptRig
from parkade.attempt import Attempt, current_attempt
from parkade.errors import NoAttempt
from parkade.family import Family
from parkade.runs import Run


@pytest.fixture
def rig() -> Iterator[AttemptRig]:
    rig = AttemptRig()
    yield rig
    rig.executor.close()


@pytest.mark.parametrize("asks", [False, True])
def test_what_an_attempt_leaves_behind_needs_no_garbage_collector(
    rig: AttemptRig, asks: bool
) -> None:
    """An attempt and its run know each other; left to the collector, they cost as much as all
    else that an attempt does."""

    def ask() -> None:
        if asks:
            current_attempt().heartbeat()

    @rig.tasks.task
    def plain() -> None:
        ask()

    @rig.tasks.task
    async def coroutine() -> None:
        ask()

    gc.collect()
    gc.disable()
    try:
        known = [id(thing) for thing in gc.get_objects() if type(thing) in (Run, Attempt)]
        for _ in range(20):
            rig.run(plain)
            rig.run(coroutine)
        left = [thing for thing in gc.get_objects() if type(thing) in (Run, Attempt)]
        # The last of each may not have let go of it yet.
        assert len([thing for thing in left if id(thing) not in known]) <= 6
    finally:
        gc.enable()


def test_the_attempt_is_one_for_all_who_ask_and_is_over_with_its_handler(rig: AttemptRig) -> None:
    seen: list[Attempt] = []
    contexts: list[contextvars.Context] = []

    @rig.tasks.task
    def ask() -> None:
        contexts.append(contextvars.copy_context())
        seen.extend([current_attempt(), current_attempt()])

    @rig.tasks.task
    def never_asks() -> None:
        contexts.append(contextvars.copy_context())

    rig.run(ask)
    assert seen[0] is seen[1]
    nobody = cast(Any, None)
    rig.executor.runs.family_of = lambda job: Family(
        nobody, job.part, now_ms=int, payload_bytes_max=9, handle=nobody
    )
    rig.run(never_asks)
    late = contexts[-1].run(current_attempt)
    with pytest.raises(NoAttempt):
        late.submit(ask.call())
