"""Calls: encoded once, frozen, and reckoned to a time when they are submitted."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from parkade.calls import Call, prepare_many
from parkade.durations import TIME_MS_MAX
from parkade.errors import ConfigError, PayloadError
from parkade.store.record import Options, Submitted, UniqueClaim
from parkade.tasks import Tasks

NOW = 1_800_000_000_000
tasks = Tasks()


class Order(msgspec.Struct):
    id: int
    cents: int = 0


@tasks.task
def resize(path: str, width: int = 800) -> str:
    return f"{path}@{width}"


@tasks.task(
    name="billing.charge",
    target="psp",
    key="order-{order.id}",
    unique="{order.id}/{order.cents}",
    summary="charge {order.id}",
    priority=2,
    tags={"team": "pay"},
)
def charge(order: Order) -> None: ...


def test_a_plain_call_becomes_a_plain_ticket_due_now() -> None:
    prepared = resize.call("cat.png", width=320).prepare(NOW)
    assert prepared.task == "resize"
    assert (prepared.at_ms, prepared.due_ms) == (NOW, NOW)
    assert (prepared.key, prepared.unique, prepared.options) == (None, None, None)
    assert prepared.draft(5, 7) == Submitted(5, 7, "resize", NOW, NOW, prepared.payload)


def test_templates_make_the_key_the_unique_the_target_and_the_summary() -> None:
    prepared = charge.call(Order(7, 5)).prepare(NOW)
    assert (prepared.key, prepared.unique, prepared.unique_mode) == ("order-7", "7/5", 0)
    assert prepared.options == Options(
        target="psp", priority=2, tags={"team": "pay"}, summary="charge 7"
    )
    draft = prepared.draft(1, 2, keep_ms=99)
    assert draft.unique == UniqueClaim("7/5", 0, -1, 99)
    assert draft.key == "order-7"


def test_options_go_before_templates() -> None:
    call = charge.options(key="k{x}", unique="u", target="bank", summary="s").call(Order(7))
    assert (call.key, call.unique) == ("k{x}", "u")
    assert call.stored == Options(target="bank", priority=2, tags={"team": "pay"}, summary="s")


def test_templates_see_the_same_whether_arguments_come_typed_or_by_name() -> None:
    typed = charge.call(Order(7))
    named = tasks.call_by_name("billing.charge", {"order": {"id": 7}})
    assert named.key == typed.key == "order-7"
    assert named.prepare(NOW).unique == "7/0"


def test_a_number_for_a_float_names_the_same_entity_from_either_side() -> None:
    registry = Tasks()

    @registry.task(key="{amount}")
    def pay(amount: float) -> None: ...

    assert pay.call(5).key == registry.call_by_name("pay", {"amount": 5}).key == "5.0"


def test_due_is_reckoned_at_the_submit_and_not_when_the_call_was_made() -> None:
    call = resize.options(delay="10m", unique="a", unique_for="1h").call("x")
    for now in (NOW, NOW + 5):
        prepared = call.prepare(now)
        assert prepared.due_ms == now + 600_000
        assert (prepared.unique_mode, prepared.unique_until_ms) == (2, now + 3_600_000)


def test_a_time_in_the_past_is_due_now() -> None:
    call = resize.options(at=datetime(2027, 1, 1, tzinfo=UTC)).call("x")
    assert call.prepare(0).due_ms == 1_798_761_600_000
    assert call.prepare(NOW).due_ms == NOW


def test_a_due_time_past_the_last_year_is_refused_at_the_submit() -> None:
    call = resize.options(delay="1y").call("x")
    with pytest.raises(ConfigError, match=r"resize\.options\(delay\) of 1 y from now"):
        call.prepare(TIME_MS_MAX)
    held = resize.options(unique="a", unique_for="1y").call("x")
    with pytest.raises(ConfigError, match=r"resize\.options\(unique_for\) of 1 y from now"):
        held.prepare(TIME_MS_MAX)


def test_what_an_argument_is_changed_to_after_the_call_does_not_matter() -> None:
    order = Order(7)
    call = charge.call(order)
    order.id = 8
    assert charge.decode(call.payload) == ((), {"order": Order(7)})


def test_a_call_is_frozen_and_good_for_any_number_of_submits() -> None:
    call: Call[Any] = resize.call("x")
    with pytest.raises(AttributeError):
        call.task = "y"  # type: ignore[misc]
    assert call.prepare(NOW) == call.prepare(NOW)
    assert call.bound is resize


def test_a_payload_over_the_limit_is_refused_by_every_way_of_submitting() -> None:
    call = resize.call("x" * 100)
    size = len(call.payload)
    assert call.prepare(NOW, payload_bytes_max=size).payload == call.payload
    with pytest.raises(PayloadError, match="the limit is"):
        call.prepare(NOW, payload_bytes_max=size - 1)
    with pytest.raises(PayloadError, match="the limit is"):
        prepare_many([resize.call("y"), call], NOW, payload_bytes_max=size - 1)


def test_many_calls_are_prepared_in_order_at_one_time() -> None:
    many = prepare_many((resize.call(str(n)) for n in range(5)), NOW)
    assert [resize.decode(one.payload)[1]["path"] for one in many] == list("01234")
    assert {one.at_ms for one in many} == {NOW}


def test_a_conflict_and_a_mode_are_told_by_their_place() -> None:
    made = resize.options(unique="a", unique_for="active", on_conflict="replace").call("x")
    prepared = made.prepare(NOW)
    assert (prepared.unique_mode, prepared.unique_until_ms, prepared.on_conflict) == (1, -1, 2)


def test_a_handler_whose_types_come_later_is_resolved_at_its_first_call() -> None:
    scope: dict[str, Any] = {"tasks": Tasks(), "__name__": "app"}
    exec("@tasks.task(key='{a.id}')\ndef f(a: 'Later'): ...", scope)
    with pytest.raises(ConfigError, match=r"annotations of f\(\) cannot be resolved.*Later"):
        scope["f"].call(1)
    scope["Later"] = Order
    assert scope["f"].call(Order(7)).key == "7"


def test_a_template_that_types_refute_is_found_at_the_first_call_where_types_come_later() -> None:
    scope: dict[str, Any] = {"tasks": Tasks(), "__name__": "app"}
    exec("@tasks.task(key='{a.idd}')\ndef f(a: 'Later'): ...", scope)
    scope["Later"] = Order
    with pytest.raises(ConfigError, match=r'no field "idd".*\[PK-303\]'):
        scope["f"].call(Order(7))
