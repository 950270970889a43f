"""The tasks of a soak, at the top level of a module: child processes import them from here."""

import asyncio
import threading
from typing import Any

from parkade import (
    Ambiguous,
    Attempt,
    Backoff,
    Breaker,
    Fail,
    Limit,
    Outcome,
    RetryPolicy,
    Snooze,
    Tasks,
)

__all__ = ["tasks"]

tasks = Tasks()
SOON = Backoff("20ms", factor=2.0, cap="200ms")
SHORT = RetryPolicy(3, backoff=SOON)
_pause = threading.Event()  # never set: what waits for it only passes time


@tasks.task
def quick(n: int) -> int:
    return n


@tasks.task(keep="3s", priority=5)
async def brief(n: int) -> int:
    await asyncio.sleep(0.002)
    return n


@tasks.task(retry=SHORT, timeout="20s")
def flaky(attempt: Attempt, n: int) -> int:
    if attempt.number % 3:
        raise OSError(f"attempt {attempt.number}")
    return n


@tasks.task(retry=SHORT)
def snoozed(attempt: Attempt) -> int:
    if attempt.fence < 3:
        raise Snooze("30ms")
    return attempt.fence


@tasks.task(where="process", timeout="30s")
def apart(n: int) -> int:
    return n * n


@tasks.task(keep="5s")
def told(outcome: Outcome[Any]) -> str:
    return outcome.state


@tasks.task(retry=RetryPolicy(2, backoff=SOON), on_dead=told, on_cancel=told)
def doomed(attempt: Attempt, name: str) -> int:
    if attempt.fence > 2:
        return attempt.fence  # it was revived
    if attempt.is_last and len(name) % 2:
        raise Ambiguous(f"nobody knows about {name}")
    raise Fail(f"{name} cannot be done")


@tasks.task(
    limits=[
        Limit(concurrency=4, rate=(200, "1s"), per="target"),
        Limit(concurrency=2, rate=(100, "1s"), per="key"),
        Limit(concurrency=8),
    ]
)
def limited(n: int) -> int:
    _pause.wait(0.002)
    return n


@tasks.task(
    target="host-{host}",
    retry=RetryPolicy(30, backoff=Backoff("50ms", cap="300ms")),
    breaker=Breaker(failures=3, open_for="200ms", max_open_for="1s"),
)
def called(attempt: Attempt, host: str, failures: int) -> int:
    """Fails so many times, which opens the breaker of its host, and then works."""
    if attempt.number <= failures:
        raise ConnectionError(f"no answer of {host}")
    return attempt.number


@tasks.task(keep="5s", unique="{name}")
def child(name: str, n: int) -> int:
    return n


@tasks.task(on_done=told, retry=SHORT)
def parent(attempt: Attempt, name: str) -> int:
    """Its children are in its own shard, in that of their key, and in any."""
    attempt.submit(quick.call(1))
    attempt.submit(child.options(key=f"child-{name}", target=f"of-{name}").call(f"a{name}", 1))
    attempt.submit(child.options(tags={"of": name}).call(f"b{name}", 2))
    return 3


@tasks.task(retry=SHORT)
def steady(attempt: Attempt, steps: int) -> int:
    """Tells how far it is, saves it, and fails once half-way."""
    begun = attempt.checkpoint(int, 0)
    for step in range(begun, steps):
        attempt.progress(step, steps, f"step {step}")
        attempt.save_checkpoint(step + 1)
        if step == steps // 2 and attempt.number == 1:
            raise OSError("half-way")
    return begun


@tasks.task(timeout="30s")
def patient(attempt: Attempt) -> int:
    """Goes on until it is cancelled; but whoever would have done that may have been killed."""
    while attempt.fence == 1 and not attempt.cancelled:
        _pause.wait(0.005)
    return 1


@tasks.task
def far(name: str) -> str:
    raise AssertionError(f"{name} is not due for hours")
