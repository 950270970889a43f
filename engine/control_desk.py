"""What a running engine answers over its control socket: the command line's questions."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["control_handlers"]


def control_handlers(engine: "Engine") -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
    """By name; each takes the request's arguments and gives plain values."""
    return {}
