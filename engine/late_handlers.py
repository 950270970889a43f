"""The calls of the control socket, imported when somebody makes the first of them.

Most engines run for months without one, and the code behind them reads stores that other engines
have left, groups dead letters and changes tickets by the thousand: some two megabytes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["LateHandlers"]

Handler = Callable[[Mapping[str, Any]], Any]


class LateHandlers(Mapping[str, Handler]):
    """`control_handlers` of an engine, for one thread."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._found: Mapping[str, Handler] | None = None

    def _handlers(self) -> Mapping[str, Handler]:
        if self._found is None:
            from parkade.control_desk import control_handlers

            self._found = control_handlers(self._engine)
        return self._found

    def __getitem__(self, name: str) -> Handler:
        return self._handlers()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers())

    def __len__(self) -> int:
        return len(self._handlers())
