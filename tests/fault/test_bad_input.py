"""Bad input: each is a clear error with its code, loses nothing, and leaves the engine usable."""

import asyncio
import functools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.engines import PATIENCE_S, make, recount, runtime_of
from parkade import (
    BlockingInEventLoop,
    ConfigError,
    Engine,
    EngineClosed,
    EngineInUse,
    NaiveDatetime,
    ParkadeError,
    PayloadError,
    RetryPolicy,
    ShardMismatch,
    StorageDamaged,
    TicketCancelled,
    UnknownTask,
)
from parkade.asks import Ask
from parkade.shard.commands import Forget
from parkade.shard.states import CANCELLED, DONE
from parkade.waiters import ThreadWaiter

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for all that must not harm it, with a task `scale`."""
    engine = make(tmp_path_factory.mktemp("bad") / "data", max_payload=10_000)

    @engine.task
    def scale(n: int, by: Any = 2) -> Any:
        return n * by

    with engine:
        yield engine


@pytest.fixture
def engine(opened: Engine) -> Iterator[Engine]:
    """Afterwards it must be as good as before, with nothing more in it."""
    kept = scale_of(opened).options(delay="1h").submit(1)
    before = opened.stats().by_task
    yield opened
    assert opened.stats().by_task == recount(opened) == before, "nothing of it is left"
    assert kept.info().state == "scheduled"
    assert scale_of(opened).submit(3).result("20s") == 6


def scale_of(engine: Engine) -> Any:
    return engine.task_of("scale")


def refused(call: Callable[[], Any], kind: type[ParkadeError], code: str, *words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.code == code
    text = str(caught.value)
    assert text.endswith(f"[{code}]")
    for word in words:
        assert word in text, text


# --------------------------------------------------------------------------------- what is given


@pytest.mark.parametrize(
    "delay",
    [
        float("nan"), float("inf"), float("-inf"), -1, -0.001, "-5s", "soon", "", "5", "1e999s",
        timedelta(seconds=-1), True, b"5s", object(), [5], 10**400,
    ],
    ids=repr,
)  # fmt: skip
def test_a_delay_that_is_no_span_is_refused(engine: Engine, delay: Any) -> None:
    refused(lambda: scale_of(engine).options(delay=delay), ConfigError, "PK-210", "delay")


@pytest.mark.parametrize("delay", ["9000y", 1e15, timedelta(days=3_000_000)], ids=repr)
def test_a_delay_longer_than_all_time_is_refused(engine: Engine, delay: Any) -> None:
    refused(lambda: scale_of(engine).options(delay=delay), ConfigError, "PK-210", "9999")


def test_what_would_be_due_past_the_year_9999_is_refused(engine: Engine) -> None:
    far = scale_of(engine).options(delay="7990y")
    refused(lambda: far.submit(1), ConfigError, "PK-210", "9999")
    refused(lambda: engine.submit_many([far.call(1)]), ConfigError, "PK-210", "9999")


def test_dates_need_a_zone_and_an_end(engine: Engine) -> None:
    task = scale_of(engine)
    naive = datetime(2030, 1, 1)
    refused(lambda: task.options(at=naive), NaiveDatetime, "PK-203", "zone")
    assert issubclass(NaiveDatetime, ValueError)
    refused(lambda: task.options(at="2030-01-01"), ConfigError, "PK-210", "at")
    refused(lambda: task.options(at=5, delay=5), ConfigError, "PK-210")
    both = {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}
    refused(lambda: task.options(**both), ConfigError, "PK-210")
    for outside in (datetime(1969, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        refused(lambda at=outside: task.options(at=at), ConfigError, "PK-210", "1970 to 9999")  # type: ignore[misc]
    last = task.options(at=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)).submit(1)
    assert last.info().due_at.year == 9999
    assert last.cancel() == "cancelled"
    past = task.options(at=datetime(1970, 1, 1, tzinfo=UTC)).submit(2)
    assert past.result("20s") == 4
    forget(engine, last.id, past.id)


def forget(engine: Engine, *ids: str) -> None:
    """Takes ended tickets away, as retention would."""
    runtime = runtime_of(engine)
    for each in ids:
        known = engine.desk("test").parse(each)
        state = DONE if engine.ticket(each).info().state == "done" else CANCELLED
        waiter = ThreadWaiter()
        ask = Ask(Forget("scale", state, [known.serial]), waiter=waiter)
        runtime.host.inbox.put([(known.part % runtime.shard_count, ask)])
        assert waiter.wait(PATIENCE_S)


def test_an_unknown_option_is_refused_with_the_one_that_was_meant(engine: Engine) -> None:
    task = scale_of(engine)
    decorator: Any = engine.task
    make_one: Any = Engine
    refused(lambda: task.options(dely="5s"), ConfigError, "PK-107", "did you mean delay=")
    refused(lambda: task.options(frobnicate=1), ConfigError, "PK-107", "it takes")
    refused(lambda: decorator(retrys=3)(lambda n: n), ConfigError, "PK-107", "did you mean retry=")
    refused(lambda: make_one("x", shard=3), ConfigError, "PK-107", "did you mean shards=")


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""}, {"key": "k" * 300}, {"key": 5}, {"key": "\ud800"},
        {"unique": ""}, {"unique": "u" * 300}, {"unique": 5},
        {"on_conflict": "ignore"}, {"unique": "a", "unique_for": "sometimes"},
        {"priority": "high"}, {"priority": 1.5}, {"priority": 10**9},
        {"tags": {"a": 1}}, {"tags": {f"t{n}": "x" for n in range(100)}}, {"tags": "a=b"},
        {"expires": 0}, {"timeout": -1}, {"retry": -1}, {"retry": "often"}, {"retry": 10**30},
        {"retry": [1] * 1000},
        {"retry": RetryPolicy(3, decide=lambda error, info: None)}, {"target": 5},
        {"summary": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_an_option_that_cannot_be_right_is_refused(engine: Engine, options: Any) -> None:
    task = scale_of(engine)
    with pytest.raises(ConfigError) as caught:
        task.options(**options).submit(1)
    assert caught.value.code in ("PK-107", "PK-210")


def test_a_task_nobody_registered_is_refused(engine: Engine) -> None:
    refused(lambda: engine.submit("scales", {"n": 1}), UnknownTask, "PK-301", "scale")
    assert issubclass(UnknownTask, LookupError)


class Strange:
    pass


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"n": "four"}, {"n": 1, "more": 2}, {"n": None}, {"n": 2**70}, {"n": 1.5},
        {"n": 1, "by": Strange()}, {"n": 1, "by": lambda: 0}, {"n": 1, "by": {"a": print}},
        {"n": 1, "by": "\ud800"}, {"n": 1, "by": "x" * 20_000}, {"n": 1, "by": 2**64},
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_payload_that_cannot_be_stored_is_refused(engine: Engine, arguments: Any) -> None:
    task = scale_of(engine)
    for call in (
        lambda: task.submit(**arguments),
        lambda: engine.submit("scale", arguments),
        lambda: engine.submit_many([task.call(**arguments)]),
    ):
        refused(call, PayloadError, "PK-202", "scale")


@pytest.mark.parametrize("payload", [None, [1], "n", 5], ids=repr)
def test_arguments_by_name_are_a_mapping(engine: Engine, payload: Any) -> None:
    refused(lambda: engine.submit("scale", payload), PayloadError, "PK-202", "a mapping")


def test_a_payload_that_contains_itself_is_refused(engine: Engine) -> None:
    ring: list[Any] = []
    ring.append(ring)
    refused(lambda: scale_of(engine).submit(1, ring), PayloadError, "PK-202")


def test_a_reason_may_be_any_text_and_nothing_else(engine: Engine) -> None:
    """What is stored without being read again for years must be right when it is written."""
    task = scale_of(engine).options(delay="1h")
    bad: list[Any] = [5, None, b"bytes", ["a"]]
    for reason in bad:
        ticket = task.submit(1)
        cancel: Callable[[], Any] = functools.partial(ticket.cancel, reason)
        refused(cancel, ConfigError, "PK-107", "reason")
        assert ticket.cancel() == "cancelled"
        forget(engine, ticket.id)
    for text in ("", "\ud800 alone", "ü" * 100_000, "x" * 5_000_000, "\x00"):
        ticket = task.submit(1)
        assert ticket.cancel(text) == "cancelled"
        with pytest.raises(TicketCancelled) as caught:
            ticket.result()
        assert len(str(caught.value)) < 2_000
        forget(engine, ticket.id)


def test_a_find_that_makes_no_sense_is_refused(engine: Engine) -> None:
    asks: list[dict[str, Any]] = [
        {"cursor": "-5"}, {"cursor": "f" * 40}, {"cursor": 5}, {"task": 5}, {"key": b"k"},
        {"key": "\ud800"}, {"state": ["done"]}, {"limit": float("nan")},
    ]  # fmt: skip
    for asked in asks:
        refused(functools.partial(engine.find, **asked), ConfigError, "PK-107", next(iter(asked)))
    reason: Any = "boredom"
    find = functools.partial(engine.dead.find, reason=reason)
    refused(find, ConfigError, "PK-107", "use one of failed")


def test_spans_without_end_wait_as_long_as_there_is_time(engine: Engine) -> None:
    ticket = scale_of(engine).submit(2)
    assert ticket.result("5000y") == 4
    refused(lambda: ticket.result(-1), ConfigError, "PK-210")
    refused(lambda: ticket.result(float("nan")), ConfigError, "PK-210")
    forget(engine, ticket.id)


def test_a_handler_that_cannot_be_one_is_refused(engine: Engine) -> None:
    def generator(n: int) -> Iterator[int]:
        yield n

    bad: list[Any] = [generator, 5, None, "scale"]
    for handler in bad:
        refused(lambda handler=handler: engine.task(name="bad")(handler), ConfigError, "PK-306")  # type: ignore[misc]
    refused(lambda: engine.task(name="scale")(lambda n: n), ConfigError, "PK-305", "scale")


# ------------------------------------------------------------------------------------- where


def test_a_directory_keeps_its_number_of_shards(engine: Engine) -> None:
    other = make(engine.path, shards=5)
    refused(other.start, ShardMismatch, "PK-103", "has 2 shards")


def test_a_second_engine_in_this_process_is_refused(engine: Engine) -> None:
    refused(make(engine.path).start, EngineInUse, "PK-101", "already open in this process")


def run(script: str, *arguments: object, check: bool = True) -> str:
    """The output of a Python process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip() + done.stderr.strip()


def test_a_second_process_is_refused_with_the_owner_named(engine: Engine) -> None:
    script = """
import sys
from parkade import Engine, EngineInUse
try:
    Engine(sys.argv[1], lock_wait="100ms").start()
except EngineInUse as error:
    print(error.code, error.pid, error)
"""
    said = run(script, engine.path)
    assert said.startswith(f"PK-101 {os.getpid()} ")
    assert "One process owns a parkade directory" in said


def test_a_forked_child_may_not_use_it_and_does_not_keep_it(tmp_path: Path) -> None:
    script = """
import os, sys
from parkade import Engine, ForkedEngine
engine = Engine(sys.argv[1], shards=1, durability="process")
@engine.task
def double(n: int) -> int:
    return 2 * n
engine.start()
ticket = double.submit(2)
assert ticket.result("20s") == 4
pid = os.fork()
if pid == 0:
    calls = [lambda: double.submit(1), ticket.result, ticket.info, engine.find, engine.stats,
             engine.stop, engine.start, lambda: engine.submit_many([double.call(1)]),
             lambda: engine.dead.revive("x")]
    for call in calls:
        try:
            call()
        except ForkedEngine as error:
            assert error.code == "PK-102", error
            assert str(os.getppid()) in str(error)
        else:
            os.write(1, b"it was used\\n")
            os._exit(1)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert double.submit(3).result("20s") == 6
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
assert engine.stop().clean
with Engine(sys.argv[1], lock_wait=0) as again:
    assert again.stats().by_task["double"]["done"] == 2
    print("fine")
os.kill(child, 9)
"""
    assert run(script, tmp_path / "data") == "fine"


def test_use_before_open_and_after_close_is_refused(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    def scale(n: int) -> int:
        return n

    calls: list[Callable[[], Any]] = [
        lambda: scale.submit(1),
        lambda: engine.submit(scale, 1),
        lambda: engine.submit_many([scale.call(1)]),
        lambda: engine.find(),
        lambda: engine.stats(),
        lambda: engine.ticket("x").info(),
        lambda: engine.dead.find(),
        lambda: engine.dead.revive("x"),
        lambda: engine.dead.drop(task="scale"),
        lambda: asyncio.run(scale.asubmit(1)),
        lambda: asyncio.run(engine.afind()),
        lambda: asyncio.run(engine.asubmit_many([scale.call(1)])),
    ]
    for _ in range(2):
        for call in calls:
            refused(call, EngineClosed, "PK-206")
        with engine:
            ticket = scale.submit(1)
            assert ticket.result("20s") == 1
    refused(ticket.result, EngineClosed, "PK-206")
    assert scale(4) == 4, "a plain call needs no engine"


def test_a_blocking_call_on_an_event_loop_is_refused(engine: Engine) -> None:
    async def main() -> None:
        refused(lambda: scale_of(engine).submit(1), BlockingInEventLoop, "PK-201", "asubmit")
        refused(engine.stop, BlockingInEventLoop, "PK-201", "astop")

    asyncio.run(main())


# ------------------------------------------------------------------------------- the directory


def test_a_directory_whose_parent_is_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "data"
    refused(lambda: make(path).start(), ConfigError, "PK-111", str(path.parent), "does not exist")
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir(parents=True)
    with make(path) as engine:
        assert engine.stats().ready == 0


def test_a_file_or_a_strangers_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    refused(lambda: make(file).start(), ConfigError, "PK-111", "is a file")
    refused(lambda: make(file / "data").start(), ConfigError, "PK-111")
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    refused(lambda: make(home).start(), ConfigError, "PK-111", "thesis.tex")
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    refused(lambda: make(link).start(), ConfigError, "PK-111")


def test_a_manifest_that_is_damaged_or_too_new_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path):
        pass
    manifest = path / "manifest.json"
    good = manifest.read_bytes()
    for bad in (b"", b"{", b"[]", good.replace(b'"shards": 2', b'"shards": 3'), good[:40]):
        manifest.write_bytes(bad)
        refused(lambda: make(path).start(), StorageDamaged, "PK-105", "manifest.json")
    manifest.write_bytes(good)
    with make(path) as engine:
        assert [shard.status for shard in engine.stats().shards] == ["open", "open"]


# What a user without rights meets: root has them all, so its rights are dropped first.
RIGHTS = """
import os, sys
from parkade import ConfigError, Engine
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        Engine(path, shards=1, lock_wait=0).start()
    except ConfigError as error:
        print(error.code, error)
    else:
        print("opened", path)
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user may look into; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_directory_without_rights_is_refused_and_left_alone(open_to_all: Path) -> None:
    ours, empty, locked = (open_to_all / name for name in ("ours", "empty", "locked"))
    with make(ours, shards=1, run=False) as engine:
        engine.task(name="note")(lambda n: n)
        kept = engine.submit("note", {"n": 1}).id
    for path in (empty, locked):
        path.mkdir()
    for path in (ours, empty, locked):
        path.chmod(0o555)
    said = run(RIGHTS, ours, empty, locked / "data").splitlines()
    for path in (ours, empty, locked):
        path.chmod(0o755)
    assert len(said) == 3, said
    for path, line in zip((ours, empty, locked), said, strict=True):
        assert line.startswith("PK-111 "), line
        assert str(path) in line
        assert "Permission denied" in line
    assert list(empty.iterdir()) == list(locked.iterdir()) == []
    with make(ours, shards=1, run=False) as engine:
        assert engine.ticket(kept).info().state == "ready"


def test_too_few_descriptors_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    script = """
import resource, sys
from parkade import ConfigError, Engine
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (70, hard))
try:
    Engine(sys.argv[1], shards=16).start()
except ConfigError as error:
    print(error.code, error)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))
with Engine(sys.argv[1], shards=16, durability="memory") as engine:
    print(engine.stats().ready)
"""
    first, second = run(script, tmp_path / "data").splitlines()
    assert first.startswith("PK-112 ")
    assert "70 files" in first and "ulimit -n" in first
    assert second == "0"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 70
