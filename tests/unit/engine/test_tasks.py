"""Tasks and their registries: names, decorators, calls, and how they find their engine."""

import asyncio
import copy
import gc
import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest

from kit.attempts import Unlinked
from parkade.attempt import RUNNING, Attempt
from parkade.clock import SystemClock
from parkade.errors import ConfigError, EngineClosed, NoAttempt, PayloadError, UnknownTask
from parkade.policies import DEFAULT_POLICY, RetryPolicy
from parkade.store.record import Options
from parkade.tasks import AsyncTask, Call, SyncTask, Task, Tasks


class Desk(Tasks):
    """An engine that keeps what is submitted to it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call[Any]] = []
        self.engine = self

    def submit_call(self, call: Call[Any], /) -> Any:
        self.calls.append(call)
        return f"ticket {len(self.calls)}"

    async def asubmit_call(self, call: Call[Any], /) -> Any:
        return self.submit_call(call)

    def ticket_of(self, ticket_id: str, task: Task[..., Any], /) -> Any:
        return ticket_id, task


def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


async def adouble(n: int) -> int:
    return 2 * n


def test_calling_a_task_calls_the_function() -> None:
    tasks = Tasks()
    task, atask = tasks.task(double), tasks.task(adouble)
    assert (type(task), type(atask)) == (SyncTask, AsyncTask)
    assert task(4) == 8
    assert asyncio.run(atask(4)) == 8


def test_a_task_looks_like_its_function() -> None:
    task = Tasks().task(double)
    wrapper = cast("Any", task)
    assert (wrapper.__name__, wrapper.__doc__) == ("double", "Twice as much.")
    assert str(inspect.signature(wrapper)) == "(n: int) -> int"
    assert repr(task) == "<SyncTask double>"


def test_a_direct_call_gets_the_running_attempt_and_needs_one() -> None:
    tasks = Tasks()

    @tasks.task
    def handler(attempt: Attempt, n: int) -> tuple[int, int]:
        return attempt.number, n

    with pytest.raises(NoAttempt):
        handler(5)
    token = RUNNING.set(Attempt("id", "handler", clock=SystemClock(), number=3, link=Unlinked()))
    try:
        assert handler(5) == (3, 5)
    finally:
        RUNNING.reset(token)


def test_submit_hands_the_call_to_the_engine() -> None:
    desk = Desk()
    task = desk.task(double)
    assert task.submit(4) == "ticket 1"  # type: ignore[comparison-overlap]
    assert asyncio.run(task.asubmit(n=5)) == "ticket 2"  # type: ignore[comparison-overlap]
    assert [task.decode(call.payload) for call in desk.calls] == [
        ((), {"n": 4}),
        ((), {"n": 5}),
    ]
    assert task.ticket("abc") == ("abc", task)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("verb", ["submit", "ticket"])
def test_without_an_engine_a_task_says_how_to_open_one(verb: str) -> None:
    task = Tasks().task(double)
    with pytest.raises(EngineClosed) as caught:
        getattr(task, verb)(4)
    assert str(caught.value).startswith(f"double.{verb}(): the engine is not open.")
    with pytest.raises(EngineClosed, match=r"double\.asubmit\(\)"):
        asyncio.run(task.asubmit(4))


def test_bad_arguments_are_told_before_a_closed_engine() -> None:
    with pytest.raises(PayloadError):
        Tasks().task(double).submit("x")  # type: ignore[arg-type]


def test_options_make_another_task_and_leave_this_one() -> None:
    desk = Desk()
    task = desk.task(double)
    later = task.options(delay="10m", unique="a")
    assert type(later) is SyncTask
    assert later(4) == 8
    later.submit(1)
    later.submit(2)
    task.submit(3)
    assert [(call.unique, call.prepare(0).due_ms) for call in desk.calls] == [
        ("a", 600_000),
        ("a", 600_000),
        (None, 0),
    ]
    assert later.options(priority=3).call(1).unique == "a"


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    task = Tasks().task(double)
    with pytest.raises(ConfigError) as caught:
        task.options(dely="10m")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "double.options(dely=...): there is no such option; did you mean delay=? [PK-107]"
    )
    with pytest.raises(ConfigError, match=r"@tasks\.task\(retries=\.\.\.\).*did you mean retry=\?"):
        Tasks().task(retries=3)(double)  # type: ignore[call-overload]


def test_names_take_the_prefix_and_aliases_do_not() -> None:
    tasks = Tasks(prefix="billing.")
    tasks.task(double)
    tasks.task(name="charge", aliases=["old.charge"])(adouble)
    assert [task.name for task in tasks.all_tasks()] == ["billing.double", "billing.charge"]
    assert tasks.lookup("old.charge").name == "billing.charge"
    assert tasks.task_of("charge") is None


def test_a_look_up_that_fails_offers_the_closest_name() -> None:
    tasks = Tasks()
    tasks.task(name="billing.charge")(double)
    with pytest.raises(UnknownTask, match=r'No task "billing\.chrage".*Close: billing\.charge\.'):
        tasks.call_by_name("billing.chrage", {})


@pytest.mark.parametrize(
    "options",
    [{"name": "double"}, {"aliases": ["double"]}, {"aliases": ["old"]}, {"name": "old"}],
)
def test_a_name_is_given_once_and_an_alias_is_a_name(options: dict[str, Any]) -> None:
    tasks = Tasks()
    tasks.task(aliases=["old"])(double)
    with pytest.raises(ConfigError) as caught:
        tasks.task(**options)(adouble)
    assert caught.value.code == "PK-305"
    assert "adouble() is taken by" in str(caught.value)
    assert [task.name for task in tasks.all_tasks()] == ["double"]


def test_an_alias_equal_to_a_name_of_its_own_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"\[PK-305\]"):
        Tasks().task(name="a", aliases=["a"])(double)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((lambda: None,), "a lambda has no name"),
        (("double",), "that is no function"),
        ((double, adouble), "that is no function"),
        ((None,), "that is no function"),
        ((Tasks().task(double),), "double is a task already"),
    ],
)
def test_what_is_no_function_with_a_name_is_refused(given: Any, problem: str) -> None:
    tasks: Any = Tasks()
    with pytest.raises(ConfigError, match=problem) as caught:
        tasks.task(*given)
    assert caught.value.code == "PK-306"


def test_a_lambda_and_a_closure_are_fine_with_a_name() -> None:
    tasks = Tasks()
    anonymous: Callable[[int], int] = lambda n: n + 1  # noqa: E731
    assert tasks.task(name="anon")(anonymous)(1) == 2
    factor = 3

    @tasks.task
    def scaled(n: int) -> int:
        return factor * n

    assert scaled(2) == 6


@pytest.mark.parametrize(
    ("fn", "where"), [(adouble, "thread"), (adouble, "process"), (double, "loop")]
)
def test_a_handler_runs_only_where_it_can(fn: Any, where: Any) -> None:
    with pytest.raises(ConfigError, match=rf"where='{where}'"):
        Tasks().task(where=where)(fn)


def test_a_refused_decoration_registers_nothing() -> None:
    tasks = Tasks()
    wrong: list[dict[str, Any]] = [{"key": "{m}"}, {"where": "loop"}, {"retry": 0}]
    for options in wrong:
        with pytest.raises(ConfigError):
            tasks.task(**options)(double)
    assert tasks.all_tasks() == []
    tasks.task(double)


# ------------------------------------------------------------------------------- inclusion


def test_an_included_registry_submits_to_its_engine() -> None:
    desk, library, inner = Desk(), Tasks("lib."), Tasks("inner.")
    task, deep = library.task(double), inner.task(double)
    library.include(inner)
    desk.include(library)
    assert task.submit(1) == "ticket 1"  # type: ignore[comparison-overlap]
    assert deep.submit(1) == "ticket 2"  # type: ignore[comparison-overlap]
    assert desk.lookup("inner.double") is deep


def test_what_is_registered_after_the_inclusion_is_included_too() -> None:
    desk, library = Desk(), Tasks("lib.")
    desk.include(library)
    task = library.task(double)
    assert desk.lookup("lib.double") is task
    desk.task(name="lib.adouble")(double)
    with pytest.raises(ConfigError, match=r"\[PK-305\]"):
        library.task(adouble)
    assert library.task_of("lib.adouble") is None


def test_an_inclusion_that_clashes_changes_nothing() -> None:
    desk, library = Desk(), Tasks()
    desk.task(double)
    library.task(adouble)
    library.task(double)
    with pytest.raises(ConfigError, match=r"\[PK-305\]"):
        desk.include(library)
    assert desk.task_of("adouble") is None
    assert library.engine is None


def test_including_twice_is_including_once() -> None:
    desk, library = Desk(), Tasks()
    library.task(double)
    desk.include(library, library)
    desk.include(library)
    assert len(desk.all_tasks()) == 1


@pytest.mark.parametrize("wrong", [None, "tasks", double])
def test_only_registries_can_be_included(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="use other Tasks objects"):
        Tasks().include(wrong)
    tasks = Tasks()
    with pytest.raises(ConfigError):
        tasks.include(tasks)
    with pytest.raises(ConfigError, match=r"Tasks\(prefix=3\)"):
        Tasks(3)  # type: ignore[arg-type]


def test_the_engine_that_included_a_registry_last_has_it_and_none_is_kept_alive() -> None:
    library = Tasks()
    task = library.task(double)
    first, second = Desk(), Desk()
    first.include(library)
    second.include(library)
    task.submit(1)
    assert (len(first.calls), len(second.calls)) == (0, 1)
    del second
    gc.collect()
    task.submit(1)
    assert len(first.calls) == 1
    first.include(library)
    del first
    gc.collect()
    with pytest.raises(EngineClosed):
        task.submit(1)


# ------------------------------------------------------------------------------- at run


def test_a_task_without_a_policy_of_its_own_has_the_engines() -> None:
    desk, library = Desk(), Tasks()
    own = library.task(retry=3)(double)
    other = library.task(adouble)
    assert other.policy is DEFAULT_POLICY
    desk.default_policy = RetryPolicy(7)
    desk.include(library)
    assert other.policy == RetryPolicy(7)
    assert own.policy == RetryPolicy(3)
    assert Desk().task(double).policy is DEFAULT_POLICY


def test_a_tickets_own_numbers_go_before_the_policys_and_types_do_not() -> None:
    task = Tasks().task(retry=RetryPolicy(3, retry_on=(OSError,)))(double)
    assert task.policy_for(None) is task.policy
    assert task.policy_for(Options(priority=3)) is task.policy
    stored = task.options(retry=["1m", "1h"]).call(1).stored
    policy = task.policy_for(stored)
    assert (policy.max_attempts, policy.delay_ms(1)) == (3, 3_600_000)
    assert policy.retry_on == (OSError,)
    unbounded = task.options(retry=RetryPolicy(None)).call(1).stored
    assert task.policy_for(unbounded).max_attempts is None
    once = task.options(retry=None).call(1).stored
    assert task.policy_for(once).max_attempts == 1


def test_a_task_tells_its_runner_all_that_the_decorator_set() -> None:
    task = Tasks().task(timeout="20s", max_snoozes=3, on_crash="ambiguous", where="thread")(double)
    assert (task.timeout_ms, task.max_snoozes, task.on_crash) == (20_000, 3, "ambiguous")
    assert task.where == "thread"
    assert task.handler.fn is double


def test_results_go_through_the_task() -> None:
    task = Tasks().task(double)
    assert task.decode_result(task.encode_result(8)) == 8
    with pytest.raises(PayloadError):
        task.encode_result("x" * 100, bytes_max=10)


def test_a_copy_of_a_task_is_as_good_as_the_task() -> None:
    desk = Desk()
    task = copy.copy(desk.task(double))
    task.submit(3)
    assert len(desk.calls) == 1


def test_plain_arguments_are_encoded_once_and_not_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = Tasks()

    @tasks.task
    def add(a: int, b: int) -> int:
        return a + b

    @tasks.task
    def total(parts: list[int]) -> int:
        return sum(parts)

    read: list[bytes] = []
    for task in (add, total):
        monkeypatch.setattr(task.definition.payloads, "_decode", read.append)
    add.call(1, 2)
    assert read == []
    total.call([1, 2])
    assert len(read) == 1
