"""Options of tasks and of submits: checked where they are written."""

from datetime import UTC, datetime
from typing import Any

import pytest

from parkade.errors import ConfigError, NaiveDatetime
from parkade.options import (
    NO_OPTIONS,
    SubmitOptions,
    TaskSettings,
    read_options,
    read_settings,
    record_options,
)
from parkade.policies import Breaker, Limit, RetryPolicy
from parkade.store.record import Options


def options(base: SubmitOptions = NO_OPTIONS, **given: Any) -> SubmitOptions:
    return read_options("resize.options", given, base, has_unique=False)


def test_every_option_of_a_submit_is_kept_as_a_number_or_a_text() -> None:
    made = options(
        delay="10m",
        unique="cat-320",
        unique_for="24h",
        on_conflict="replace",
        key="cat",
        target="psp",
        priority=-3,
        expires="1h",
        timeout="20s",
        retry=["1m", "1h"],
        tags={"campaign": "may"},
        summary="resize\nthe cat",
    )
    assert made.delay_ms == 600_000
    assert (made.unique, made.unique_mode, made.unique_for_ms) == ("cat-320", 2, 86_400_000)
    assert (made.on_conflict, made.key, made.target, made.priority) == (2, "cat", "psp", -3)
    assert (made.expires_ms, made.timeout_ms) == (3_600_000, 20_000)
    assert made.retry is not None
    assert (made.retry.max_attempts, made.retry.delays_ms) == (3, [60_000, 3_600_000])
    assert made.tags == {"campaign": "may"}
    assert made.summary == "resize the cat"


def test_later_options_go_on_top_of_earlier_ones() -> None:
    first = options(delay="10m", unique="a", unique_for="24h", priority=2)
    second = options(first, at=datetime(2027, 1, 1, tzinfo=UTC), unique_for="active", key="k")
    assert (second.delay_ms, second.at_ms) == (None, 1_798_761_600_000)
    assert (second.unique, second.unique_mode, second.unique_for_ms) == ("a", 1, None)
    assert (second.priority, second.key) == (2, "k")
    third = options(second, delay=5, unique_for="kept")
    assert (third.delay_ms, third.at_ms, third.unique_mode) == (5_000, None, 0)
    assert options(first) == first


def test_none_leaves_an_option_as_it_is_save_for_retry() -> None:
    assert options(delay=None, unique=None, tags=None) == NO_OPTIONS
    once = options(retry=None).retry
    assert once is not None
    assert (once.max_attempts, once.delays_ms) == (1, [])


@pytest.mark.parametrize(
    "given",
    [
        {"dely": 3},
        {"delay": float("nan")},
        {"delay": -1},
        {"at": "2027"},
        {"delay": 1, "at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"unique": ""},
        {"unique": 7},
        {"unique": "x" * 256},
        {"unique_for": "24h"},
        {"on_conflict": "error"},
        {"unique": "a", "unique_for": "forever"},
        {"unique": "a", "unique_for": 0},
        {"unique": "a", "on_conflict": "raise"},
        {"key": ""},
        {"target": b"x"},
        {"priority": True},
        {"priority": 1.5},
        {"priority": 40_000},
        {"expires": 0},
        {"timeout": "0s"},
        {"timeout": float("inf")},
        {"retry": 0},
        {"retry": RetryPolicy(decide=lambda error, info: None)},
        {"tags": [("a", "b")]},
        {"tags": {"a": 1}},
        {"tags": {"": "b"}},
        {"tags": {str(n): "x" for n in range(33)}},
        {"summary": 3},
    ],
)
def test_a_bad_option_is_refused_where_it_is_written(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**given)
    assert caught.value.code in {"PK-107", "PK-210"}
    assert "resize.options(" in str(caught.value)


def test_a_naive_time_is_refused_as_such() -> None:
    with pytest.raises(NaiveDatetime):
        options(at=datetime(2027, 1, 1))


def test_unique_options_need_a_unique_somewhere() -> None:
    with pytest.raises(ConfigError, match=r"unique_for='24h'\): it needs a unique="):
        options(unique_for="24h")
    assert read_options("x", {"unique_for": "24h"}, NO_OPTIONS, has_unique=True).unique_mode == 2
    assert options(options(unique="a"), on_conflict="error").on_conflict == 1


def test_every_option_of_a_task_is_checked_and_kept() -> None:
    breaker, limit = Breaker("psp"), Limit(concurrency=8)
    settings = read_settings(
        "@engine.task",
        {
            "name": "billing.charge",
            "aliases": ["charge"],
            "retry": 3,
            "timeout": "20s",
            "lease": "1m",
            "key": "order-{order}",
            "breaker": breaker,
            "limits": [limit],
            "priority": 5,
            "expires": "1h",
            "max_snoozes": 3,
            "on_crash": "ambiguous",
            "where": "process",
            "keep": 0,
            "tags": {"team": "pay"},
        },
    )
    assert settings == TaskSettings(
        name="billing.charge",
        aliases=("charge",),
        retry=RetryPolicy(3),
        timeout_ms=20_000,
        lease_ms=60_000,
        key="order-{order}",
        breaker=breaker,
        limits=(limit,),
        priority=5,
        expires_ms=3_600_000,
        max_snoozes=3,
        on_crash="ambiguous",
        where="process",
        keep_ms=0,
        tags={"team": "pay"},
    )


def test_a_task_without_options_leaves_its_policy_to_the_engine() -> None:
    assert read_settings("x", {}).retry is None
    assert read_settings("x", {"retry": None}).retry == RetryPolicy(1)
    assert read_settings("x", {"lease": "auto", "name": None}) == TaskSettings()


@pytest.mark.parametrize(
    "given",
    [
        {"nme": "x"},
        {"name": ""},
        {"name": "two words"},
        {"name": "tab\there"},
        {"name": "parkade.bulk"},
        {"name": 3},
        {"aliases": "charge"},
        {"aliases": [""]},
        {"aliases": [3]},
        {"retry": "1m"},
        {"timeout": 0},
        {"lease": 0},
        {"lease": "car"},
        {"breaker": "psp"},
        {"limits": Limit(concurrency=1)},
        {"limits": ["x"]},
        {"priority": "high"},
        {"expires": -1},
        {"max_snoozes": 0},
        {"on_crash": "ignore"},
        {"where": "gpu"},
        {"keep": float("nan")},
        {"tags": "x"},
    ],
)
def test_a_bad_option_of_a_task_is_refused_at_decoration(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings("@engine.task", given)
    assert str(caught.value).startswith("@engine.task(")


def test_a_ticket_stores_nothing_where_nothing_was_set() -> None:
    assert record_options(TaskSettings(), NO_OPTIONS) is None
    # These are read from the code when an attempt runs.
    assert record_options(TaskSettings(timeout_ms=5, retry=RetryPolicy(3)), NO_OPTIONS) is None


def test_a_ticket_stores_the_tasks_settings_under_those_of_the_submit() -> None:
    settings = TaskSettings(priority=1, expires_ms=10, tags={"team": "pay", "kind": "a"})
    assert record_options(settings, NO_OPTIONS) == Options(
        priority=1, expires_ms=10, tags={"team": "pay", "kind": "a"}
    )
    made = options(priority=0, tags={"kind": "b"}, timeout=2, retry=2, target="psp")
    assert record_options(settings, made) == Options(
        target="psp",
        priority=0,
        expires_ms=10,
        tags={"team": "pay", "kind": "b"},
        timeout_ms=2_000,
        max_attempts=2,
        delays_ms=[2_000],
        jitter=1,
    )
