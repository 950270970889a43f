"""Arguments as they may be shown: dots in place of what is annotated `Annotated[..., Secret]`.

Only the code that has the handler knows the annotations; without it nothing can be told apart.
"""

import dataclasses
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from parkade.policies import Secret

__all__ = ["DOTS", "redact", "redact_arguments"]

DOTS = "•••"
_NESTING_MAX = 32


def redact_arguments(arguments: Any, hints: Mapping[str, Any]) -> Any:
    """The arguments by name, as `decode_untyped` gives them, by the handler's annotations."""
    if not isinstance(arguments, dict):
        return arguments
    named = cast(dict[str, Any], arguments)
    return {name: redact(value, hints.get(name, Any)) for name, value in named.items()}


def redact(value: Any, hint: Any, nesting: int = 0) -> Any:
    """A plain value, seen through the annotation that it was stored by."""
    if value is None or nesting > _NESTING_MAX:
        return value
    origin, arms = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if any(mark is Secret or isinstance(mark, Secret) for mark in hint.__metadata__):
            return DOTS
        return redact(value, arms[0], nesting + 1)
    if origin in (Union, types.UnionType):
        for arm in arms:
            value = redact(value, arm, nesting + 1)
        return value
    if isinstance(value, list):
        return _redact_list(cast(Any, value), origin, arms, hint, nesting)
    if isinstance(value, dict):
        items = cast(Any, value).items()
        fields = _fields(hint if origin is None else origin)
        if fields is None:
            inner = arms[1] if len(arms) == 2 else Any
            return {key: redact(one, inner, nesting + 1) for key, one in items}
        return {key: redact(one, fields.get(key, Any), nesting + 1) for key, one in items}
    return value


def _redact_list(
    values: list[Any], origin: Any, arms: tuple[Any, ...], hint: Any, nesting: int
) -> list[Any]:
    fields = _fields(hint if origin is None else origin)
    if fields is not None:  # a named tuple, or a Struct that is stored as an array
        inner = list(fields.values())
    elif origin is tuple and arms[-1:] != (Ellipsis,):
        inner = list(arms)
    else:
        inner = [arms[0] if arms else Any] * len(values)
    inner += [Any] * (len(values) - len(inner))
    return [redact(one, each, nesting + 1) for one, each in zip(values, inner, strict=False)]


@lru_cache(maxsize=256)
def _fields(cls: Any) -> dict[str, Any] | None:
    """Annotations by stored name, in order; None for what has no named fields."""
    if not isinstance(cls, type):
        return None
    shape = cast(Any, cls)
    is_struct = issubclass(cls, msgspec.Struct)
    is_tuple = issubclass(cls, tuple) and hasattr(shape, "_fields")
    if not (is_struct or is_tuple or dataclasses.is_dataclass(shape) or is_typeddict(shape)):
        return None
    try:
        hints = get_type_hints(cast(Any, cls), include_extras=True)
    except Exception:
        return None  # an annotation that names what is not defined
    if not is_struct:
        return hints
    fields = msgspec.structs.fields(cast(Any, cls))
    return {field.encode_name: hints.get(field.name, Any) for field in fields}
