"""Reads have threads of their own: no frame waits for one."""

import functools
import threading
from pathlib import Path
from typing import Any

from kit.engines import PATIENCE_S, make, runtime_of
from parkade.io import Reads, ShardIO


def test_a_submit_and_its_end_do_not_wait_for_reads_under_way(tmp_path: Path) -> None:
    is_over = threading.Event()
    with make(tmp_path / "data") as engine:
        task = engine.task(name="note")(lambda n: n)
        host = runtime_of(engine).host
        begun = [threading.Event() for _ in host.shards]

        def hang(event: threading.Event) -> None:
            event.set()
            assert is_over.wait(PATIENCE_S)

        def hang_all() -> None:
            for shard, event in zip(host.shards, begun, strict=True):
                shard.io.read(functools.partial(hang, event), lambda *_: None)

        host.call(hang_all)
        try:
            readers = len(runtime_of(engine).readers)
            assert all(event.wait(PATIENCE_S) for event in begun[:readers])
            assert [task.submit(n).result(PATIENCE_S) for n in range(8)] == list(range(8))
        finally:
            is_over.set()


def test_who_is_due_alone_is_read_before_what_waits_of_all_shards() -> None:
    heard: list[str] = []
    reads = Reads("reads")
    ios = [ShardIO("io", lambda done, *news: done(*news)) for _ in range(2)]
    for io in ios:
        io.reads = reads

    def ask(io: ShardIO, name: str, *, is_first: bool = False) -> None:
        io.read(lambda: name, lambda got, _: heard.append(got), is_first=is_first)

    ask(ios[0], "rows")
    ask(ios[1], "rows of another")
    ask(ios[1], "who is due", is_first=True)
    assert all(io.is_idle and not io.run_one() for io in ios), "nothing of it is theirs"
    while reads.run_one():
        pass
    assert heard == ["who is due", "rows", "rows of another"]


def test_what_closes_the_store_waits_for_reads_under_way() -> None:
    heard: list[Any] = []
    reads, io = Reads("reads"), ShardIO("io", lambda done, *news: done(*news))
    io.reads = reads
    io.read(lambda: "read", lambda got, _: heard.append(got))
    io.call_behind_reads(lambda: "closed", lambda got, _: heard.append(got))
    assert not io.run_one() and not io.is_idle
    while reads.run_one():
        pass
    assert heard == ["read"]
    assert io.run_one() and io.is_idle
    assert heard == ["read", "closed"]


def test_an_error_of_a_read_is_told_like_its_value() -> None:
    heard: list[Any] = []
    reads, io = Reads("reads"), ShardIO("io", lambda done, *news: done(*news))
    io.reads = reads

    def fail() -> None:
        raise OSError("broken")

    io.read(fail, lambda got, error: heard.append((got, str(error))))
    assert reads.run_one() and not reads.run_one()
    assert heard == [(None, "broken")]
