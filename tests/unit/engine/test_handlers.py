"""Handlers: what is read from a function, and which functions cannot be tasks."""

import functools
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from parkade.attempt import Attempt
from parkade.errors import ConfigError
from parkade.handlers import Handler, Unresolved


def read(fn: Any) -> Handler:
    return Handler(fn, call="@engine.task")


def from_text(text: str, **names: Any) -> Any:
    """The function `f` of a module made from text."""
    module = types.ModuleType("app")
    vars(module).update(names)
    exec(text, vars(module))
    return module.__dict__["f"]


def test_a_plain_function_and_a_coroutine_function_are_told_apart() -> None:
    def plain(a: int) -> int: ...  # type: ignore[empty-body]
    async def coroutine(a: int) -> int: ...  # type: ignore[empty-body]

    assert not read(plain).is_async
    assert read(coroutine).is_async
    assert read(plain).arguments == ["a"]
    assert read(plain).hints() == {"a": int, "return": int}


def test_an_attempt_in_front_is_injected_and_not_an_argument() -> None:
    def handler(attempt: Attempt, a: int) -> None: ...

    reading = read(handler)
    assert reading.takes_attempt
    assert reading.arguments == ["a"]
    assert str(reading.signature) == "(a: int) -> None"


@pytest.mark.parametrize(
    "text",
    [
        "def f(attempt: 'Attempt', a: int): ...",
        "def f(attempt: 'parkade.attempt.Attempt', a: int): ...",
        "from __future__ import annotations\ndef f(attempt: Attempt, a: int): ...",
        "from __future__ import annotations\ndef f(attempt: 'Attempt', a: int): ...",
        "from __future__ import annotations\nimport parkade.attempt as p\n"
        "def f(attempt: p.Attempt, a: int): ...",
    ],
)
def test_an_attempt_named_in_text_is_one_even_if_only_a_type_checker_imports_it(
    text: str,
) -> None:
    reading = read(from_text(text))
    assert reading.takes_attempt
    assert reading.hints() == {"a": int}


def test_another_class_of_that_name_is_an_ordinary_argument() -> None:
    class Attempt: ...

    text = "def f(attempt: 'Attempt', mine: 'MyAttempt'): ..."
    assert not read(from_text(text, Attempt=Attempt, MyAttempt=int)).takes_attempt
    assert not read(from_text("def f(attempt): ...")).takes_attempt


@pytest.mark.parametrize(
    "text",
    [
        "def f(a: int, attempt: 'Attempt'): ...",
        "def f(*attempt: 'Attempt'): ...",
        "def f(*, attempt: 'Attempt'): ...",
    ],
)
def test_an_attempt_anywhere_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Attempt must be its first argument \[PK-306\]"):
        read(from_text(text))


def test_annotations_that_name_what_comes_later_are_resolved_later() -> None:
    fn = from_text("def f(a: 'Later') -> 'Later': ...")
    reading = read(fn)
    with pytest.raises(Unresolved, match="Later"):
        reading.hints()
    fn.__globals__["Later"] = int
    assert reading.hints() == {"a": int, "return": int}


def test_annotations_that_are_no_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="its annotations cannot be read"):
        read(from_text("def f(a: 'int +'): ...")).hints()


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    def inner(attempt: Attempt, a: int) -> None: ...

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> None: ...

    assert read(outer).takes_attempt
    assert read(outer).arguments == ["a"]


def test_a_callable_object_is_as_async_as_its_call() -> None:
    class Sync:
        def __call__(self, a: int) -> int: ...  # type: ignore[empty-body]

    class Async:
        async def __call__(self, a: int) -> int: ...  # type: ignore[empty-body]

    assert read(Sync()).arguments == ["a"]
    assert not read(Sync()).is_async
    assert read(Async()).is_async
    assert read(Async()).hints() == {"a": int, "return": int}
    assert read(functools.partial(print, "a")).default_name == "partial"


def test_generators_methods_and_unreadable_callables_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> AsyncIterator[int]:
        yield 1

    class Shop:
        def charge(self, order: int) -> None: ...

    for fn, problem in (
        (generator, "it is a generator"),
        (agenerator, "it is a generator"),
        (Shop.charge, "a method needs its object"),
        (type, "its arguments cannot be told"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            read(fn)
        assert caught.value.code == "PK-306"
    assert read(Shop().charge).arguments == ["order"]


def test_a_handler_says_where_it_is() -> None:
    assert (
        read(test_a_handler_says_where_it_is)
        .where()
        .endswith("test_handlers.test_a_handler_says_where_it_is")
    )
