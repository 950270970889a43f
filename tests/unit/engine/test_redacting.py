"""What is annotated as secret is shown as dots, wherever in the arguments it stands."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest

from parkade.policies import Secret
from parkade.redacting import DOTS, redact, redact_arguments

Hidden = Annotated[str, Secret]


class Card(msgspec.Struct, rename="camel"):
    card_number: Hidden
    holder: str


class Pair(msgspec.Struct, array_like=True):
    name: str
    word: Hidden


@dataclass
class Login:
    user: str
    password: Annotated[str, Secret()]


class Point(NamedTuple):
    place: str
    code: Hidden


class Row(TypedDict):
    who: str
    pin: Hidden


class Node(msgspec.Struct):
    word: Hidden
    rest: "Node | None" = None


@pytest.mark.parametrize(
    ("hint", "value", "shown"),
    [
        (str, "a", "a"),
        (Hidden, "a", DOTS),
        (Hidden | None, "a", DOTS),
        (Hidden | None, None, None),
        (list[Hidden], ["a", "b"], [DOTS, DOTS]),
        (tuple[str, Hidden], ["a", "b"], ["a", DOTS]),
        (tuple[Hidden, ...], ["a", "b"], [DOTS, DOTS]),
        (dict[str, Hidden], {"k": "a"}, {"k": DOTS}),
        (Annotated[list[Hidden], "a note"], ["a"], [DOTS]),
        (Card, {"cardNumber": "4", "holder": "ann"}, {"cardNumber": DOTS, "holder": "ann"}),
        (list[Card | None], [{"cardNumber": "4"}, None], [{"cardNumber": DOTS}, None]),
        (Pair, ["ann", "b"], ["ann", DOTS]),
        (Login, {"user": "ann", "password": "b"}, {"user": "ann", "password": DOTS}),
        (Point, ["here", "b"], ["here", DOTS]),
        (Row, {"who": "ann", "pin": "1", "more": 2}, {"who": "ann", "pin": DOTS, "more": 2}),
        (Node, {"word": "a", "rest": {"word": "b"}}, {"word": DOTS, "rest": {"word": DOTS}}),
        (Annotated[Card, Secret], {"cardNumber": "4"}, DOTS),
        (Any, {"pin": "1"}, {"pin": "1"}),
    ],
)
def test_the_annotation_decides_what_is_dots(hint: Any, value: Any, shown: Any) -> None:
    assert redact(value, hint) == shown


@pytest.mark.parametrize("value", [[], {}, [1, [2]], {"a": {"b": None}}, 7, "text", True])
@pytest.mark.parametrize("hint", [Card, Pair, Point, list[Login], tuple[Hidden, int], dict])
def test_a_value_that_does_not_fit_its_annotation_is_no_error(hint: Any, value: Any) -> None:
    redact(value, hint)


def test_arguments_go_by_their_names_and_unknown_ones_stay() -> None:
    shown = redact_arguments({"word": "a", "gone": "b"}, {"word": Hidden})
    assert shown == {"word": DOTS, "gone": "b"}
    assert redact_arguments("no map", {}) == "no map"
