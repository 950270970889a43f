"""When: a timer wheel that owns no clock."""

if __name__ != "parkade.wheel":  # pragma: no cover
    raise ImportError("import parkade.wheel: the folder name is not the module name")

from parkade.wheel.check import check
from parkade.wheel.level import SPAN_MS, Timer
from parkade.wheel.wheel import Wheel

__all__ = ["SPAN_MS", "Timer", "Wheel", "check"]
