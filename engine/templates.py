"""Templates over a handler's arguments: `key="order-{order.id}"`.

A field is an argument's name and steps into it: `.attribute`, `[index]`, `[key]`. No calls, no
format codes, no private names: a template reads a value and does nothing. It is checked when the
task is decorated and rendered at submit, on the caller's thread.
"""

import dataclasses
import datetime
import decimal
import enum
import re
import string
import uuid
from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    NoReturn,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from parkade.checks import NAME_BYTES_MAX, utf8_length
from parkade.errors import ConfigError, PayloadError
from parkade.handlers import Handler
from parkade.outcome import Outcome
from parkade.policies import Secret

__all__ = ["SUMMARY_CHARS_MAX", "Template"]

SUMMARY_CHARS_MAX = 200
DOTS = "•••"

_FIELD = re.compile(r"([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*|\[[^\[\]{}]+\])*)")
_STEP = re.compile(r"\.(\w+)|\[([^\]]+)\]")
# What reads the same in every process and every version, and so may name an entity.
_NAMING = (
    *(str, int, float, decimal.Decimal, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, enum.Enum),
)

_Step = tuple[bool, str | int]  # (is it an attribute, its name or index)


@dataclasses.dataclass(slots=True)
class _Field:
    """`{order.id}`: where the value starts, and the steps into it."""

    text: str
    argument: str
    steps: tuple[_Step, ...]
    default: Any
    is_secret: bool = False

    def value(self, values: Mapping[str, Any]) -> Any:
        found = values.get(self.argument, self.default)
        for is_attribute, step in self.steps:
            found = getattr(found, step) if is_attribute else found[step]  # type: ignore[arg-type]
        return found


class Template:
    """One template of a task. `option` is its name: `key`, `unique`, `target` or `summary`.

    Raises `ConfigError` (PK-303) for what cannot be rendered.
    """

    __slots__ = ("_handler", "_option", "_parts", "_task", "_text")

    def __init__(self, text: str, *, option: str, task: str, handler: Handler) -> None:
        self._text, self._option, self._task, self._handler = text, option, task, handler
        if not isinstance(cast(object, text), str) or not text:
            raise ConfigError.option(handler.call, option, text, "use a text that is not empty")
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            self._refuse(f"{error}; a brace itself is written twice")
        self._parts: list[str | _Field] = []
        for literal, field, spec, conversion in parsed:
            if literal:
                self._parts.append(literal)
            if field is not None:
                if spec or conversion:
                    self._refuse("a field takes no format; store the value as it shall look")
                self._parts.append(self._field(field))

    @property
    def is_constant(self) -> bool:
        """Whether it reads no argument."""
        return not any(isinstance(part, _Field) for part in self._parts)

    def constant(self) -> str:
        """The text of a template that reads no argument; a bad one is the decorator's fault."""
        try:
            return self.render({}) if self._option != "summary" else self.render_summary({})
        except PayloadError as error:
            self._refuse(error.problem)

    def check_types(self, hints: Mapping[str, Any]) -> None:
        """Follow each field through the annotations, as far as they say anything."""
        for part in self._parts:
            if isinstance(part, _Field):
                hint = hints.get(part.argument, Any)
                for step in part.steps:
                    part.is_secret |= _is_secret(hint)
                    hint = self._after(_plain(hint), step)
                part.is_secret |= _is_secret(hint)
                if part.is_secret and self._option != "summary":
                    self._refuse(f"{{{part.text}}} is a Secret and would be readable in it")

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for these arguments: a key, a unique or a target.

        Raises `PayloadError` where a value is missing, None, no name for anything, or too long.
        """
        text = ""
        for part in self._parts:
            text += part if type(part) is str else self._named(part, values)  # type: ignore[arg-type]
        if not text:
            self._refuse_value("it is empty")
        # Four bytes a character at most: most names need not be encoded to be measured.
        if (not text.isascii() or len(text) > NAME_BYTES_MAX) and not (
            0 < utf8_length(text) <= NAME_BYTES_MAX
        ):
            self._refuse_value(f"it is no text of at most {NAME_BYTES_MAX} bytes")
        return text

    def render_summary(self, values: Mapping[str, Any]) -> str:
        """The text for people: never refused, cut where it is long, dots for what is secret."""
        text = "".join(
            part if isinstance(part, str) else _shown(part, values) for part in self._parts
        )
        return cut_summary(text)

    def _named(self, field: _Field, values: Mapping[str, Any]) -> str:
        try:
            value = field.value(values)
        except Exception as error:
            self._refuse_value(f"{{{field.text}}} raised {type(error).__name__}: {error}", field)
        if type(value) is str or type(value) is int:
            return str(value)
        if isinstance(value, enum.Enum):
            value = value.value
        if not isinstance(value, _NAMING):
            name = "None" if value is None else f"a {type(value).__name__}"
            self._refuse_value(f"{{{field.text}}} is {name}, which names nothing", field)
        return str(value)

    def _field(self, text: str) -> _Field:
        found = _FIELD.fullmatch(text)
        parameters = self._handler.signature.parameters
        names = ", ".join(parameters) or "none"
        if not found:
            self._refuse(
                f"{{{text}}} is no argument, attribute or index, like {{order.id}}. "
                f"Arguments: {names}"
            )
        argument = found[1]
        if argument not in parameters:
            self._refuse(
                f'{self._handler.default_name}() has no argument "{argument}". Arguments: {names}'
            )
        steps: list[_Step] = []
        for attribute, key in _STEP.findall(found[2]):
            if attribute.startswith("_"):
                self._refuse(f"{{{text}}} reads a private name")
            steps.append((True, attribute) if attribute else (False, _index(key)))
        parameter = parameters[argument]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            self._refuse(f"{{{text}}} is not one argument but any number of them")
        default = None if parameter.default is parameter.empty else parameter.default
        return _Field(text, argument, tuple(steps), default)

    def _after(self, hint: Any, step: _Step) -> Any:
        """What a step from a value of type `hint` leads to; Any where nobody knows."""
        is_attribute, name = step
        origin, args = get_origin(hint) or hint, get_args(hint)
        if not is_attribute:
            if is_typeddict(origin):
                return self._member(origin, str(name), _hints(origin))
            if origin is dict and len(args) == 2:
                return args[1]
            return args[0] if origin is list and args else Any
        if is_typeddict(origin) or (isinstance(origin, type) and issubclass(origin, Mapping)):
            self._refuse(f"a {_name(hint)} is a mapping: write [{name}] instead of .{name}")
        if not isinstance(origin, type) or origin is object:
            return Any
        members = _hints(origin)
        if callable(getattr(origin, str(name), None)) and name not in members:
            self._refuse(f"{_name(hint)}.{name} is a method, and a template calls nothing")
        if is_closed(origin) and not hasattr(origin, str(name)):
            return self._member(origin, str(name), members)
        return members.get(str(name), Any)

    def _member(self, owner: Any, name: str, members: Mapping[str, Any]) -> Any:
        if name not in members:
            fields = ", ".join(members) or "none"
            self._refuse(f'{_name(owner)} has no field "{name}". Fields: {fields}')
        return members[name]

    def _refuse(self, problem: str) -> NoReturn:
        call = f'{self._handler.call}({self._option}="{self._text}")'
        raise ConfigError(f"{call}: {problem}", code="PK-303")

    def _refuse_value(self, problem: str, field: _Field | None = None) -> NoReturn:
        text = f'{self._option}="{self._text}": {problem}'
        if field is None:
            raise PayloadError(self._task, f"cannot make {text}")
        raise PayloadError(self._task, f"cannot make {text}", argument=field.argument)


def cut_summary(text: str) -> str:
    """A summary as it is stored: one line, bounded, valid Unicode."""
    text = " ".join(text[: 4 * SUMMARY_CHARS_MAX].split())
    if len(text) > SUMMARY_CHARS_MAX:
        text = text[: SUMMARY_CHARS_MAX - 1] + "…"
    return text if text.isascii() else text.encode(errors="replace").decode()


def is_closed(owner: Any) -> bool:
    """Whether a class names all its fields: a Struct, a dataclass, an attrs class, a plain type."""
    plain = (msgspec.Struct, Outcome, str, int, float, bytes, list, tuple, set)
    return (
        issubclass(owner, plain)
        or dataclasses.is_dataclass(owner)
        or hasattr(owner, "__attrs_attrs__")
    )


def _shown(field: _Field, values: Mapping[str, Any]) -> str:
    if field.is_secret:
        return DOTS
    try:
        value = field.value(values)
        return str(value.value if isinstance(value, enum.Enum) else value)
    except Exception:
        return "?"


def _index(key: str) -> str | int:
    return int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key


def _is_secret(hint: Any) -> bool:
    return get_origin(hint) is Annotated and any(
        mark is Secret or isinstance(mark, Secret) for mark in hint.__metadata__
    )


def _plain(hint: Any) -> Any:
    """A hint without its annotations, and without None beside one other type."""
    if get_origin(hint) is Annotated:
        hint = hint.__origin__
    others = [arg for arg in get_args(hint) if arg is not type(None)]
    if len(others) == 1 and type(None) in get_args(hint):
        return others[0]
    return hint


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return get_type_hints(owner, include_extras=True)
    except Exception:
        return dict.fromkeys(getattr(owner, "__annotations__", {}), Any)


def _name(owner: Any) -> str:
    return str(getattr(get_origin(owner) or owner, "__name__", owner))
