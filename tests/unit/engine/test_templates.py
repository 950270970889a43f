"""Templates: what they may read, what is refused at decoration, what at submit."""

import dataclasses
import enum
import uuid
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest

from parkade.errors import ConfigError, PayloadError
from parkade.handlers import Handler
from parkade.policies import Secret
from parkade.templates import SUMMARY_CHARS_MAX, Template


class Colour(enum.Enum):
    RED = "red"


class Region(TypedDict):
    name: str


class Order(msgspec.Struct):
    id: int
    items: list[str] = msgspec.field(default_factory=list[str])
    card: Annotated[str, Secret] = ""
    region: Region | None = None

    def total(self) -> int:
        return self.id

    @property
    def label(self) -> str:
        return f"no. {self.id}"


@dataclasses.dataclass
class Parcel:
    order: Order
    weights: dict[str, int] = dataclasses.field(default_factory=dict[str, int])


class Point(NamedTuple):
    x: int


def charge(
    order: Order,
    parcel: Parcel | None = None,
    meta: dict[str, str] | None = None,
    point: Point | None = None,
    anything: Any = None,
    region: Region | None = None,
    token: Annotated[str, Secret] = "",
    n: int = 7,
    *rest: int,
) -> None: ...


def template(text: Any, option: str = "key", fn: Callable[..., Any] = charge) -> Template:
    handler = Handler(fn, call="@engine.task")
    made = Template(text, option=option, task="t", handler=handler)
    made.check_types(handler.hints())
    return made


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("order-{order.id}", "order-7"),
        ("{order.items[1]}", "b"),
        ("{order.label}", "no. 7"),
        ("{order.region[name]}", "eu"),
        ("{meta[x y]}", "z"),
        ("{point.x}:{point[0]}", "3:3"),
        ("{{{n}}}", "{5}"),
        ("{anything.deep[0].id}", "9"),
        ("constant", "constant"),
    ],
)
def test_a_template_reads_arguments_attributes_and_indexes(text: str, rendered: str) -> None:
    values = {
        "order": Order(7, ["a", "b"], region={"name": "eu"}),
        "meta": {"x y": "z"},
        "point": Point(3),
        "anything": type("A", (), {"deep": [Order(9)]})(),
        "n": 5,
    }
    assert template(text).render(values) == rendered


def test_an_argument_that_was_left_out_has_the_handlers_default() -> None:
    assert template("{n}").render({}) == "7"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "order-{ordr.id}",
            'charge() has no argument "ordr". Arguments: order, parcel, meta, point, anything, '
            "region, token, n, rest",
        ),
        ("{order.idd}", 'Order has no field "idd". Fields: id, items, card, region'),
        ("{order.region.name}", "a Region is a mapping: write [name] instead of .name"),
        ("{region[nam]}", 'Region has no field "nam". Fields: name'),
        ("{meta.x}", "a dict is a mapping: write [x] instead of .x"),
        ("{order.id.bit_length}", "int.bit_length is a method, and a template calls nothing"),
        ("{order.total}", "Order.total is a method, and a template calls nothing"),
        ("{parcel.order.idd}", 'Order has no field "idd"'),
        ("{parcel.weights[a].x}", 'int has no field "x"'),
        ("{order.items[0].x}", 'str has no field "x"'),
        ("{order.__class__}", "reads a private name"),
        ("{order._id}", "reads a private name"),
        ("{order.id:>10}", "a field takes no format"),
        ("{order.id!r}", "a field takes no format"),
        ("{order.total()}", "is no argument, attribute or index"),
        ("{0}", "is no argument, attribute or index"),
        ("{}", "is no argument, attribute or index"),
        ("{order id}", "is no argument, attribute or index"),
        ("{order.items[]}", "is no argument, attribute or index"),
        ("{order", "a brace itself is written twice"),
        ("order}", "a brace itself is written twice"),
        ("{rest}", "is not one argument but any number of them"),
        ("{token}", "{token} is a Secret and would be readable in it"),
        ("{order.card}", "{order.card} is a Secret and would be readable in it"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused_at_decoration(
    text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        template(text, "unique")
    assert caught.value.code == "PK-303"
    assert str(caught.value).startswith(f'@engine.task(unique="{text}"): ')
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["", 3, None, b"x"])
def test_a_template_is_a_text_that_is_not_empty(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"use a text that is not empty \[PK-107\]"):
        template(text)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("x", "x"),
        (7, "7"),
        (Colour.RED, "red"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (date(2027, 1, 1), "2027-01-01"),
    ],
)
def test_a_name_is_made_of_what_reads_the_same_in_every_process(value: Any, rendered: str) -> None:
    assert template("{anything}").render({"anything": value}) == rendered


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "{anything} is None, which names nothing"),
        (object(), "{anything} is a object, which names nothing"),
        ([1], "{anything} is a list, which names nothing"),
        (b"x", "{anything} is a bytes, which names nothing"),
        ("", "it is empty"),
        ("x" * 256, "it is no text of at most 255 bytes"),
        ("€" * 86, "it is no text of at most 255 bytes"),
        ("\ud800", "it is no text of at most 255 bytes"),
    ],
)
def test_a_value_that_names_nothing_is_refused_at_submit(value: Any, problem: str) -> None:
    with pytest.raises(PayloadError) as caught:
        template("{anything}", "unique").render({"anything": value})
    assert problem in str(caught.value)
    assert 'cannot make unique="{anything}"' in str(caught.value)


def test_a_step_that_fails_is_refused_at_submit_with_its_argument() -> None:
    with pytest.raises(PayloadError, match=r"t\(meta=\.\.\.\).*raised KeyError: 'x'"):
        template("{meta[x]}").render({"meta": {}})
    with pytest.raises(PayloadError, match="raised AttributeError"):
        template("{anything.x}").render({"anything": 3})


def test_a_summary_is_never_refused_and_hides_secrets() -> None:
    made = template("{order.id} {order.card} {token} {meta[x]} {anything}", "summary")
    values: dict[str, Any] = {
        "order": Order(7, card="4242"),
        "token": "s3",
        "meta": {},
        "anything": Colour.RED,
    }
    assert made.render_summary(values) == "7 ••• ••• ? red"
    assert made.render_summary({}) == "? ••• ••• ? None"


def test_a_summary_is_one_bounded_line_of_valid_text() -> None:
    made = template("{anything}", "summary")
    assert made.render_summary({"anything": "a\n  b\tc"}) == "a b c"
    assert len(made.render_summary({"anything": "x" * 10_000})) == SUMMARY_CHARS_MAX
    assert made.render_summary({"anything": "a\ud800"}) == "a?"


def test_a_constant_is_told_apart_and_checked_at_decoration() -> None:
    assert template("psp", "target").is_constant
    assert not template("{n}", "target").is_constant
    assert template("psp", "target").constant() == "psp"
    with pytest.raises(ConfigError, match=r"at most 255 bytes.*\[PK-303\]"):
        template("x" * 256, "target").constant()
    assert template("y" * 256, "summary").constant().endswith("…")
