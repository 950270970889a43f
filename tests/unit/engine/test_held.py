"""What is held costs nothing: neither a look in a pass, nor memory past the windows.

The same for a million tickets is bench/held.py.
"""

from typing import Any

import pytest

from parkade import Breaker, Limit
from parkade.guards import Guards
from parkade.queues import Post
from parkade.shard import Bounds
from parkade.testing import TestEngine

WINDOWS = 2 * Bounds().window_max


def looks_of_two_lives(monkeypatch: pytest.MonkeyPatch, held: int, hold: str) -> tuple[int, int]:
    """How often admission looks at a lane, and at what may hold one, while two tickets live beside
    so many that are held; and how many tickets are in memory."""
    looked = 0

    def counted(method: Any) -> Any:
        def look(*args: Any) -> Any:
            nonlocal looked
            looked += 1
            return method(*args)

        return look

    with TestEngine() as engine:

        @engine.task(target="psp", breaker=Breaker("psp"), limits=[Limit(rate=(1, "300d"))])
        def charge(n: int) -> None: ...

        engine.task(name="note")(lambda: None)
        if hold == "breaker":
            engine.breakers.force_open("psp")
        if hold == "pause":
            engine.pause(task="charge")
        engine.submit_many(charge.options(priority=n % 3).call(n) for n in range(held))
        engine.run_until_idle()
        engine.clock.advance("10s")  # checkpoints take what is past the windows
        engine.submit("note", {})
        engine.run_until_idle()
        assert engine.stats().ready == held
        hot = sum(shard.hot for shard in engine.stats().shards)
        note = engine.task_of("note")
        assert note is not None
        # One that comes alone is taken without a look.
        engine.submit_many([note.call(), note.call()])
        with monkeypatch.context() as patch:
            patch.setattr(Post, "head", counted(Post.head))
            for name in ("task_hold", "target_hold"):
                patch.setattr(Guards, name, counted(getattr(Guards, name)))
            assert engine.run_until_idle().done == 2
    return looked, hot


@pytest.mark.parametrize("hold", ["breaker", "pause", "limit"])
def test_a_pass_looks_at_no_ticket_that_is_held(monkeypatch: pytest.MonkeyPatch, hold: str) -> None:
    few, _ = looks_of_two_lives(monkeypatch, 20, hold)
    many, hot = looks_of_two_lives(monkeypatch, 9_000, hold)
    assert 0 < many <= few
    assert hot <= 3 * WINDOWS + 10
