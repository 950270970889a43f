"""Checks of single arguments, and the one form of their refusals. All raise `ConfigError`."""

from typing import NoReturn, cast

from parkade.errors import ConfigError

__all__ = ["check_choice", "check_count", "check_error_types", "check_text", "fill", "refuse"]

COUNT_MAX = 1_000_000_000_000
NAME_BYTES_MAX = 255  # of task names, keys, uniques and targets: they stand in indexes and labels


def refuse(call: str, name: str, value: object, advice: str) -> NoReturn:
    """`Backoff(factor=0.5): use a number from 1 on`."""
    raise ConfigError.option(call, name, value, f"use {advice}")


def check_count(call: str, name: str, value: object, *, least: int = 1) -> int:
    """A whole number, not a bool, from `least` on; what is beyond any use cannot be stored."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        refuse(call, name, value, f"a whole number from {least} on")
    if value > COUNT_MAX:
        refuse(call, name, value, f"a whole number of at most {COUNT_MAX:,}")
    return value


def check_choice(call: str, name: str, value: object, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        words = [f'"{choice}"' for choice in choices]
        refuse(call, name, value, f"{', '.join(words[:-1])} or {words[-1]}")
    return value


def check_text(call: str, name: str, value: object, *, bytes_max: int = NAME_BYTES_MAX) -> str:
    """A text that is not empty, is valid Unicode and not longer than `bytes_max` in UTF-8."""
    if not isinstance(value, str):
        refuse(call, name, value, f"a text, not {type(value).__name__}")
    if not value:
        refuse(call, name, value, "a text that is not empty, or leave it out")
    # Four bytes a character at most: most texts are short enough without being encoded.
    if len(value) * 4 > bytes_max and utf8_length(value) > bytes_max:
        refuse(call, name, value, f"a text of at most {bytes_max} bytes")
    if not value.isascii() and utf8_length(value) < 0:
        refuse(call, name, value, "valid Unicode: it holds a lone surrogate")
    return value if type(value) is str else str.__str__(value)


def utf8_length(text: str) -> int:
    """Bytes of a text in UTF-8; -1 when it has none (a lone surrogate)."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def check_error_types(call: str, name: str, value: object) -> tuple[type[BaseException], ...]:
    """A tuple of exception classes."""
    if isinstance(value, type):
        refuse(call, name, value, f"a tuple: ({value.__name__},)")
    if not isinstance(value, tuple):
        refuse(call, name, value, "a tuple of exception classes")
    items = cast(tuple[object, ...], value)
    types = [item for item in items if isinstance(item, type) and issubclass(item, BaseException)]
    if len(types) < len(items):
        refuse(call, name, items, "exception classes only")
    return tuple(types)


def fill(value: object, /, **fields: object) -> None:
    """Set the fields of a frozen value while it is being made."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
