"""An engine is constructed, opened, used and left: the ways in and out, and where handlers run."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit.engines import hold_handlers, make, runtime_of, when
from parkade import (
    BlockingInEventLoop,
    ConfigError,
    Engine,
    EngineClosed,
    Tasks,
    WaitInsideAttempt,
    current_attempt,
)
from parkade.drive import Drive
from parkade.runtime import Runtime


def test_constructing_an_engine_touches_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    engine = make(tmp_path / "data")

    @engine.task
    def double(n: int) -> int:
        return 2 * n

    assert not (tmp_path / "data").exists()
    assert threading.active_count() == before
    with pytest.raises(EngineClosed) as caught:
        double.submit(1)
    assert caught.value.code == "PK-206"


def test_what_was_submitted_in_one_life_ends_in_the_next(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", durability="process")

    @engine.task
    def double(n: int) -> int:
        return 2 * n

    with make(tmp_path / "data", durability="process", run=False) as first:
        first.task(name="double")(lambda n: n)
        ids = [first.submit("double", {"n": n}).id for n in range(3)]
        assert first.stop().clean
    with engine:
        assert [engine.ticket(each).result("20s") for each in ids] == [0, 2, 4]
        assert [double.ticket(each).result("20s") for each in ids] == [0, 2, 4]


def test_an_engine_can_be_opened_again_and_again(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    def double(n: int) -> int:
        return 2 * n

    ids: list[str] = []
    for _ in range(3):
        assert engine.start() is engine
        assert engine.start() is engine, "one that is open stays so"
        ids.append(double.submit(len(ids)).id)
        assert double.ticket(ids[-1]).result("20s") == 2 * (len(ids) - 1)
        assert engine.stop().clean
        assert engine.stop().clean, "twice is once"
    with engine:
        assert [double.ticket(each).result() for each in ids] == [0, 2, 4]


def test_a_block_inside_of_another_leaves_the_engine_open(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    double = engine.task(name="double")(lambda n: 2 * n)

    async def within() -> int:
        async with engine, engine:
            ticket = await double.asubmit(3)
            return int(await ticket)

    with engine:
        with engine, pytest.raises(BlockingInEventLoop):
            asyncio.run(blocking(engine))
        assert asyncio.run(within()) == 6
        assert double.submit(1).result("20s") == 2
    with pytest.raises(EngineClosed):
        double.submit(1)
    with engine:
        engine.stop()
        with engine:
            assert double.submit(2).result("20s") == 4
    with pytest.raises(EngineClosed):
        double.submit(1)


async def blocking(engine: Engine) -> None:
    with engine:
        raise AssertionError("a loop may not be blocked")


def test_threads_and_files_are_given_back(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    def double(n: int) -> int:
        return 2 * n

    fds = Path("/proc/self/fd")
    with engine:
        double.submit(1).result("20s")
    threads = threading.active_count()
    files = len(list(fds.iterdir())) if fds.exists() else 0
    for _ in range(3):
        with engine:
            double.submit(1).result("20s")
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("parkade-io", "parkade-core"))], names
    assert threading.active_count() <= threads + 3, "workers end as they become free"
    if files:
        assert len(list(fds.iterdir())) <= files + 1


def test_an_engine_that_only_submits_starts_nothing(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        ran: list[int] = []
        task = engine.task(name="note")(lambda n: ran.append(n))
        ticket = task.submit(1)
        when(engine, lambda runtime: any(s.placement.ready_count for s in runtime.shards))
        assert ticket.info().state == "ready"
        assert engine.stats().ready == 1
    assert ran == []


def test_plain_handlers_run_in_threads_and_coroutines_on_a_loop_of_our_own(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task
        def plain() -> str:
            return threading.current_thread().name

        @engine.task
        async def coroutine() -> str:
            await asyncio.sleep(0)
            return threading.current_thread().name

        assert plain.submit().result("20s").startswith("parkade-worker")
        assert coroutine.submit().result("20s") == "parkade-loop"
        assert threading.current_thread().name not in (plain.submit().result("20s"),)


def test_async_with_runs_coroutines_on_the_loop_of_the_caller(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    async def where() -> int:
        return id(asyncio.get_running_loop())

    @engine.task
    def thread() -> str:
        return threading.current_thread().name

    async def main() -> None:
        async with engine:
            mine = await (await where.asubmit())
            assert mine == id(asyncio.get_running_loop())
            assert (await (await thread.asubmit())).startswith("parkade-worker")
        assert (await engine.astop()).clean

    asyncio.run(main())


def test_blocking_calls_are_refused_on_a_loop_and_name_their_twin(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    def double(n: int) -> int:
        return 2 * n

    async def main() -> None:
        with pytest.raises(BlockingInEventLoop, match=r"await engine\.astart"):
            engine.start()
        async with engine:
            ticket = await double.asubmit(4)
            for call, twin in (
                (lambda: double.submit(1), "double.asubmit"),
                (lambda: engine.submit(double, 1), "double.asubmit"),
                (lambda: engine.submit_many([double.call(1)]), "engine.asubmit_many"),
                (lambda: ticket.result(), "ticket.aresult"),
                (lambda: ticket.info(), "ticket.ainfo"),
                (lambda: ticket.attempts(), "ticket.aattempts"),
                (lambda: ticket.cancel(), "ticket.acancel"),
                (lambda: engine.find(), "engine.afind"),
                (lambda: engine.dead.revive(ticket.id), "engine.dead.arevive"),
                (lambda: engine.stop(), "engine.astop"),
            ):
                with pytest.raises(BlockingInEventLoop) as caught:
                    call()
                assert caught.value.code == "PK-201"
                assert f"await {twin}(" in str(caught.value)
            assert await ticket == 8, "and nothing is lost by it"

    asyncio.run(main())


def test_a_loop_that_closes_under_its_attempts_ends_them_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    engine = make(tmp_path / "data")
    came = threading.Event()

    @engine.task(retry=["1h"])
    async def stay() -> None:
        came.set()
        await asyncio.Event().wait()

    @engine.task
    def double(n: int) -> int:
        return 2 * n

    async def main() -> str:
        await engine.astart()
        ticket = await stay.asubmit()
        await asyncio.to_thread(came.wait, 20)
        return ticket.id

    # A loop that is closed as it stands: asyncio.run would cancel its tasks first.
    loop = asyncio.new_event_loop()
    ticket_id = loop.run_until_complete(main())
    tasks = asyncio.all_tasks(loop)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    try:
        assert double.submit(2).result("20s") == 4
        attempts = engine.ticket(ticket_id).attempts()
        assert [attempt.outcome for attempt in attempts] == ["lost"]
        assert engine.ticket(ticket_id).info().maybe_applied
    finally:
        assert engine.stop().clean


def test_a_handler_may_submit_and_may_not_wait(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task
        def child(n: int) -> int:
            return n

        @engine.task
        def parent() -> str:
            ticket = child.submit(7)
            try:
                ticket.result()
            except WaitInsideAttempt as error:
                assert error.code == "PK-207"
                return ticket.id
            return "waited"

        @engine.task
        async def async_parent() -> str:
            ticket = await child.asubmit(8)
            try:
                await ticket
            except WaitInsideAttempt:
                return ticket.id
            return "waited"

        assert child.ticket(parent.submit().result("20s")).result("20s") == 7
        assert child.ticket(async_parent.submit().result("20s")).result("20s") == 8


def test_tasks_of_collections_are_found_and_included_later(tmp_path: Path) -> None:
    billing = Tasks("billing.")

    @billing.task
    def charge(amount: int) -> str:
        return f"{current_attempt().task} {amount}"

    with make(tmp_path / "data", include=[billing]) as engine:
        assert charge.submit(5).result("20s") == "billing.charge 5"
        late = Tasks()

        @late.task
        def hello() -> str:
            return "hello"

        engine.include(late)
        assert hello.submit().result("20s") == "hello"


class DawdlingDrive(Drive):
    """Comes back from the start when the core thread has made many passes."""

    def start(self, runtime: Runtime) -> None:
        super().start(runtime)
        for _ in range(20):
            runtime.host.call(lambda: None)


def test_a_handler_that_begins_with_the_open_finds_its_engine_open(tmp_path: Path) -> None:
    def opened(*, run: bool) -> Engine:
        engine = make(tmp_path / "data", run=run)
        vars(engine)["_options"].make_drive = DawdlingDrive

        @engine.task(retry=1)
        def asks() -> int:
            return engine.stats().running

        return engine

    with opened(run=False) as engine:
        ticket_id = engine.submit("asks", {}).id
    with opened(run=True) as engine:
        assert engine.ticket(ticket_id).result() == 1


def test_an_unregistered_task_is_held_and_holds_nobody(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        engine.task(name="gone")(lambda n: n)
        engine.task(name="here")(lambda n: n)
        held = [engine.submit("gone", {"n": n}).id for n in range(5)]
        runs = [engine.submit("here", {"n": n}).id for n in range(5)]
    with make(tmp_path / "data") as engine:

        @engine.task
        def here(n: int) -> int:
            return n

        assert [here.ticket(each).result("20s") for each in runs] == list(range(5))
        infos = [engine.ticket(each).info() for each in held]
        assert {(info.state, info.attempts, info.fence) for info in infos} == {("ready", 0, 0)}

        @engine.task
        def gone(n: int) -> int:
            return -n

        # Registered meanwhile: it runs with the next pass.
        here.submit(0)
        assert [gone.ticket(each).result("20s") for each in held] == [0, -1, -2, -3, -4]


def test_options_that_cannot_be_right_are_refused_before_anything_opens(tmp_path: Path) -> None:
    for options, words in (
        ({"durability": "fsync"}, 'use "disk"'),
        ({"shards": 0}, "whole number from 1"),
        ({"shards": 257}, "1 to 256"),
        ({"threads": 0}, "whole number from 1"),
        ({"async_limit": True}, "whole number from 1"),
        ({"max_payload": -1}, "whole number from 1"),
        ({"thread": 4}, "did you mean threads="),
        ({"keep_done": "soon"}, "keep_done"),
        ({"lock_wait": float("nan")}, "lock_wait"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            Engine(str(tmp_path / "data"), **options)
        assert caught.value.code in ("PK-107", "PK-210")
    assert list(tmp_path.iterdir()) == []


def test_a_forgotten_engine_is_closed_cleanly_when_the_process_ends(tmp_path: Path) -> None:
    script = """
import sys
from parkade import Engine
engine = Engine(sys.argv[1], shards=1, durability="process")
@engine.task
def double(n: int) -> int:
    return 2 * n
engine.start()
print(double.submit(21).id)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, tmp_path / "data"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with make(tmp_path / "data", shards=1, durability="process") as engine:
        assert runtime_of(engine).lost_at_open == 0
        assert engine.ticket(done.stdout.strip()).result() == 42


def test_an_engine_that_cannot_start_lets_the_directory_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(tmp_path / "data")
    with monkeypatch.context() as patched:

        def fail(_: object) -> None:
            raise RuntimeError("no more threads")

        patched.setattr("parkade.runtime.Runtime.start", fail)
        with pytest.raises(RuntimeError, match="no more threads"):
            engine.start()
    with engine, pytest.raises(EngineClosed):
        make(tmp_path / "other").stats()


def test_handlers_never_see_more_places_than_there_are(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data", threads=3) as engine:

        @engine.task
        def wait(n: int) -> None:
            gate.enter()

        tickets = engine.submit_many([wait.call(n) for n in range(10)])
        gate.wait(3)
        when(engine, lambda runtime: runtime.attempts.running == 3)
        assert engine.stats().running == 3
        gate.open()
        for ticket in tickets:
            ticket.result("20s")
        assert gate.inside_max == 3
