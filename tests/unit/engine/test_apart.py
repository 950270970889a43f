"""Reading in a child: what it says, what it raises, and how it ended, all come back."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from parkade.apart import ChildDied, lines_apart, serve_lines
from parkade.control import ControlError
from parkade.errors import ConfigError


def say(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"heard": asked["word"]}
    if asked["then"] == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if asked["then"] == "refuse":
        raise ConfigError("not here", code="PK-111")
    if asked["then"] == "break":
        raise RuntimeError("a fault of ours")
    yield {"heard": "the end"}


def test_every_line_comes_back() -> None:
    assert list(lines_apart(__name__, {"word": "ä\n", "then": ""})) == [
        {"heard": "ä\n"},
        {"heard": "the end"},
    ]


@pytest.mark.parametrize(("then", "reason"), [("die", "SIGSEGV"), ("break", "a fault of ours")])
def test_a_child_that_dies_has_said_what_it_found_before(then: str, reason: str) -> None:
    lines = lines_apart(__name__, {"word": "x", "then": then})
    assert next(lines) == {"heard": "x"}
    with pytest.raises(ChildDied, match=reason):
        next(lines)


def test_an_error_of_ours_comes_back_with_its_code() -> None:
    lines = lines_apart(__name__, {"word": "x", "then": "refuse"})
    assert next(lines) == {"heard": "x"}
    with pytest.raises(ControlError, match="not here") as caught:
        next(lines)
    assert caught.value.code == "PK-111"


if __name__ == "__main__":
    serve_lines(say)
