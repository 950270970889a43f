"""Reads a handler: its arguments, whether it takes the attempt, what its annotations mean.

Annotations written as text may name what is defined further down, so they are resolved when first
needed, at the latest at the first submit.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, ForwardRef, NoReturn, get_type_hints

from parkade.errors import ConfigError

__all__ = ["Handler", "Unresolved"]

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Unresolved(Exception):
    """An annotation names something that does not exist yet."""


class Handler:
    """A function that attempts of a task call. `call` is how it came here, like `@engine.task`.

    `signature` is what callers see: without the attempt. Raises `ConfigError` (PK-306) for what
    cannot be called by name with stored arguments.
    """

    __slots__ = (
        "_hints",
        "_raw",
        "call",
        "default_name",
        "fn",
        "is_async",
        "signature",
        "takes_attempt",
    )

    def __init__(self, fn: Callable[..., Any], *, call: str) -> None:
        self.call, self.fn = call, fn
        self.default_name: str = getattr(fn, "__name__", type(fn).__name__)
        # A callable object is as async as its __call__.
        body = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
        self.is_async = inspect.iscoroutinefunction(body)
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            self._refuse("it is a generator; return the result, or submit a ticket for each part")
        try:
            signature = _signature(fn)
        except (ValueError, TypeError) as error:
            self._refuse(f"its arguments cannot be told ({error}); wrap it in a function", error)
        parameters = list(signature.parameters.values())
        self._raw = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
        if signature.return_annotation is not signature.empty:
            self._raw["return"] = signature.return_annotation
        self.takes_attempt = self._check_attempt(parameters)
        if self.takes_attempt:
            del self._raw[parameters.pop(0).name]
        first = parameters[0] if parameters else None
        if first and first.name in ("self", "cls") and first.name not in self._raw:
            self._refuse("a method needs its object, which is not stored; use a function")
        self.signature = signature.replace(parameters=parameters)
        self._hints: dict[str, Any] | None = None

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments that callers give."""
        return list(self.signature.parameters)

    def hints(self) -> dict[str, Any]:
        """The resolved annotations by argument, `return` among them; what has none is missing.

        Raises `Unresolved` where a name is not defined, `ConfigError` where an annotation is wrong.
        """
        if self._hints is None:
            self._hints = self._resolve()
        return self._hints

    def where(self) -> str:
        """The function's module and name, as people look for it."""
        return f"{getattr(self.fn, '__module__', '?')}.{_qualname(self.fn)}"

    def _resolve(self) -> dict[str, Any]:
        def carrier() -> None: ...

        carrier.__annotations__ = dict(self._raw)
        inner: Any = inspect.unwrap(self.fn)
        scope = getattr(inner, "__globals__", None) or vars(sys.modules[type(inner).__module__])
        try:
            return get_type_hints(carrier, globalns=scope, include_extras=True)
        except NameError as error:
            raise Unresolved(str(error)) from error
        except Exception as error:
            self._refuse(f"its annotations cannot be read ({error})", error)

    def _check_attempt(self, parameters: list[inspect.Parameter]) -> bool:
        """Whether the first parameter is the attempt; no other may be."""
        for place, parameter in enumerate(parameters):
            if _names_attempt(parameter.annotation, self.fn):
                if place or parameter.kind in (*_VARIADIC, parameter.KEYWORD_ONLY):
                    self._refuse(f"{parameter.name}: Attempt must be its first argument")
                return True
        return False

    def _refuse(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        raise ConfigError(
            f"{self.call}: {self.default_name}() cannot be a task: {problem}", code="PK-306"
        ) from cause


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def _names_attempt(annotation: Any, fn: Callable[..., Any]) -> bool:
    """Whether an annotation is parkade's Attempt, itself or by a name in text.

    Told by the class's own name, not by importing it: a handler module may be imported first.
    """
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return (
            getattr(annotation, "__qualname__", "") == "Attempt"
            and getattr(annotation, "__module__", "") == "parkade.attempt"
        )
    text = annotation.strip().strip("'\"")
    if text.rpartition(".")[2] != "Attempt":
        return False
    found = getattr(inspect.unwrap(fn), "__globals__", {}).get(text.partition(".")[0])
    for part in text.split(".")[1:]:
        found = getattr(found, part, None)
    # Not there: imported for type checkers alone, and then it is the one that they know.
    return found is None or _names_attempt(found, fn)


def _qualname(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
