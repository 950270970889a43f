"""Submits: what any arguments and options make is what a ticket can be."""

from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from parkade.calls import Prepared
from parkade.durations import TIME_MS_MAX
from parkade.errors import ConfigError, ParkadeError, PayloadError
from parkade.options import CONFLICTS, UNIQUE_MODES
from parkade.store.record import decode_records, encode_records
from parkade.tasks import Tasks

tasks = Tasks()


@tasks.task(name="order", key="{who}/{n}", summary="{who} asks for {n}", tags={"team": "pay"})
def order(who: str, n: int = 0) -> None: ...


TEXTS = st.text(max_size=300)
SPANS = st.one_of(st.integers(0, 10**9), st.timedeltas(timedelta(0), timedelta(days=3_000_000)))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "delay": SPANS,
        "unique": TEXTS,
        "unique_for": st.one_of(st.sampled_from(UNIQUE_MODES[:2]), SPANS),
        "on_conflict": st.sampled_from(CONFLICTS),
        "key": TEXTS,
        "target": TEXTS,
        "priority": st.integers(-40_000, 40_000),
        "expires": SPANS,
        "timeout": SPANS,
        "retry": st.one_of(st.none(), st.integers(-1, 5), st.lists(SPANS, max_size=3)),
        "tags": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "summary": TEXTS,
    },
)


def prepared(who: str, n: int, options: dict[str, Any], now_ms: int) -> Prepared | None:
    try:
        return order.options(**options).call(who, n).prepare(now_ms)
    except (ConfigError, PayloadError):
        return None


@given(TEXTS, st.integers(), OPTIONS, st.integers(0, TIME_MS_MAX))
def test_what_is_prepared_can_be_written_as_a_record_and_read_back(
    who: str, n: int, options: dict[str, Any], now_ms: int
) -> None:
    made = prepared(who, n, options, now_ms)
    if made is None:
        return
    record = made.draft(1, 2, keep_ms=3)
    assert decode_records(encode_records([record])) == [record]
    assert order.decode(record.payload) == ((), {"who": who, "n": n})
    assert now_ms <= record.due_ms <= TIME_MS_MAX
    assert record.key
    assert record.options is not None
    assert record.options.tags == {"team": "pay"} | options.get("tags", {})


@given(TEXTS, OPTIONS)
def test_options_given_one_by_one_are_those_given_together(
    who: str, options: dict[str, Any]
) -> None:
    together = prepared(who, 1, options, 1_000)
    task = order
    try:
        # A unique goes first: two others need one.
        for name in sorted(options, key=lambda name: name != "unique"):
            task = task.options(**{name: options[name]})
        one_by_one = task.call(who, 1).prepare(1_000)
    except ParkadeError:
        assert together is None
    else:
        assert one_by_one == together


@given(st.text(alphabet="abc{}[].!:_0 ", max_size=12))
def test_any_text_is_a_template_that_renders_or_is_refused_at_decoration(text: str) -> None:
    class Thing(msgspec.Struct):
        a: int = 1
        b: str = "b"

    def handler(a: Thing, b: int, c: str) -> None: ...

    handler.__annotations__["a"] = Thing
    try:
        task = Tasks().task(key=text)(handler)
    except ConfigError as error:
        assert error.code in {"PK-303", "PK-107"}
        return
    try:
        key = task.call(Thing(), 2, "c").key
    except PayloadError as error:
        assert "cannot make key=" in str(error)
    else:
        assert key
        assert "__" not in key or "__" in text
