"""Frames that are heard of together, and what bounds the wait for them."""

import threading
from pathlib import Path

from kit.clock import ManualClock
from kit.engines import PATIENCE_S, make, runtime_of, when
from parkade.shard.ticket import part_of_key
from parkade.volley import Volley


def test_the_last_frame_of_a_volley_rings() -> None:
    volley = Volley()
    volley.gather()
    assert volley.holds(1), "the pass under way will look"
    assert volley.expect(3)
    assert [volley.holds(come) for come in (1, 2, 3)] == [True, True, False]
    volley.end()
    assert not volley.holds(1), "who comes later than the others rings at once"


def test_a_frame_alone_is_waited_for_by_nobody() -> None:
    volley = Volley()
    assert not volley.expect(1) and not volley.holds(1)
    assert not volley.expect(0) and not volley.holds(1)


def test_a_shard_whose_disk_hangs_keeps_no_other_shard_waiting(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        task = engine.task(name="note")(lambda n: n)
        keys = {part_of_key(str(n)) % 2: str(n) for n in range(20)}
        submits = [
            threading.Thread(target=task.options(delay="1h", key=keys[shard]).submit, args=(1,))
            for shard in (0, 1)
        ]
        hangs, gate, host = threading.Event(), threading.Event(), runtime_of(engine).host

        def hang() -> None:
            hangs.set()
            gate.wait(PATIENCE_S)

        host.call(lambda: host.shards[0].io.call(hang, lambda *_: None))
        assert hangs.wait(PATIENCE_S), "a frame would go before it"
        submits[0].start()
        when(engine, lambda runtime: runtime.shards[0].frame_in_flight)
        submits[1].start()
        submits[1].join(PATIENCE_S)
        assert not submits[1].is_alive() and submits[0].is_alive()
        gate.set()
        submits[0].join(PATIENCE_S)
        assert not submits[0].is_alive()
