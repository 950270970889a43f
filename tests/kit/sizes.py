"""How many things an engine holds in memory, by where it holds them.

Everything that can be reached from an engine is walked: attributes, elements, closures, partials,
and what the modules of parkade keep for themselves. Each container counts under the class and the
attribute that it hangs on, or under the container it is in. So a dictionary that gains an entry
with each new name is found, without anybody having thought of it.
"""

import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["grown", "sizes"]

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)


def sizes(*roots: object) -> Counter[str]:
    """The number of elements of all containers, by where they are; and of objects by class."""
    counted: Counter[str] = Counter()
    seen: set[int] = set()
    kept: list[object] = []  # while their ids are in `seen`
    todo: deque[tuple[str, object]] = deque((type(root).__qualname__, root) for root in roots)
    todo.extend(_module_state())
    while todo:
        place, thing = todo.popleft()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        kept.append(thing)
        if isinstance(thing, dict | list | set | frozenset | deque | tuple):
            counted[place] += len(thing)
        elif _is_ours(type(thing)):
            counted[f"objects of {type(thing).__qualname__}"] += 1
        todo.extend(_within(place, thing))
    return counted


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Where there is more than there was, with both numbers."""
    return {
        place: (before.get(place, 0), count)
        for place, count in sorted(after.items())
        if count > before.get(place, 0)
    }


def _module_state() -> Iterator[tuple[str, object]]:
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == "parkade":
            for attribute, value in vars(module).items():
                if isinstance(value, dict | list | set | deque) and not attribute.startswith("__"):
                    yield f"{name}.{attribute}", value
                cached = getattr(value, "cache_info", None)
                if cached is not None and cached().maxsize is None:
                    yield f"cache of {name}.{attribute}", [None] * cached().currsize


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "parkade"


def _within(place: str, thing: object) -> Iterator[tuple[str, object]]:
    """What a thing holds, and the place it holds it in."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield f"{place}[]", value
            yield f"{place} keys", key
    elif isinstance(thing, list | set | frozenset | deque | tuple) and not _is_ours(type(thing)):
        for value in thing:
            yield f"{place}[]", value
    elif isinstance(thing, MethodType):
        yield place, thing.__self__
    elif isinstance(thing, partial):
        for value in (thing.func, *thing.args, *thing.keywords.values()):
            yield f"{place} partial", value
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            try:
                yield f"closure of {thing.__qualname__}", cell.cell_contents
            except ValueError:  # it is empty
                continue
    else:
        for name, value in _attributes(thing):
            yield f"{type(thing).__qualname__}.{name}", value


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    names = set(getattr(thing, "__struct_fields__", ()))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    for name in sorted(names - {"__dict__", "__weakref__"}):
        value = getattr(thing, name, None)
        if value is not None:
            yield name, value
