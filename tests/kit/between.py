"""Another thread or a signal comes in between two steps of what is read, wherever it can.

The interpreter changes threads between two of its instructions and nowhere else, so an order of two
threads is told by the number of the instruction at which the other one acts. A signal handler, or a
finalizer in a collection, comes in between on the same thread, where a function begins. What a
handler raises also comes after a call, and where a loop goes on.
"""

import dis
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

__all__ = ["interrupted_at_every_call", "met_at_every_step", "struck_at_every_step"]

T = TypeVar("T")
PATIENCE_S = 20.0


def met_at_every_step(
    prepare: Callable[[], tuple[Callable[[], T], Callable[[], object]]], *, steps_max: int = 2_000
) -> list[T]:
    """What `read` gives when `act` runs before its first instruction, before its second, and so on
    to the last; `prepare` makes both anew for each. Only Python code of `read` counts as steps."""
    return _met(prepare, "opcode", steps_max)


def interrupted_at_every_call(
    prepare: Callable[[], tuple[Callable[[], T], Callable[[], object]]], *, steps_max: int = 2_000
) -> list[T]:
    """The same, where `act` runs at the beginning of the first function that `read` calls, and so
    on, on its thread: it has whatever locks that has. Where it waits for itself, that fails."""
    given: list[list[T]] = []
    thread = threading.Thread(
        target=lambda: given.append(_met(prepare, "call", steps_max)), daemon=True
    )
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for itself"
    return given[0]


def _met(
    prepare: Callable[[], tuple[Callable[[], T], Callable[[], object]]], event: str, steps_max: int
) -> list[T]:
    given: list[T] = []
    for step in range(steps_max):
        read, act = prepare()
        meeting = _Meeting(step, act, event)
        given.append(meeting.run(read))
        if not meeting.has_met:
            return given[:-1]
    raise AssertionError(f"more than {steps_max} steps: read less")


class _Meeting:
    def __init__(self, step: int, act: Callable[[], object], event: str) -> None:
        self._event = event
        self._left = step
        self._act = act
        self.has_met = False

    def run(self, read: Callable[[], T]) -> T:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return read()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        _trace_each(frame, self._trace, opcodes=self._event == "opcode")
        if event == self._event and not self.has_met:
            if self._left == 0:
                self.has_met = True  # no trace calls the tracer: what `act` does are no steps
                self._act()
            self._left -= 1
        return self._trace


def struck_at_every_step(
    prepare: Callable[[], tuple[Callable[[], object], Callable[[], object]]],
    *,
    steps_max: int = 2_000,
) -> int:
    """How often a signal ended `act`, with KeyboardInterrupt: at its first place, at its second,
    and so on to the last; `check` follows each time. `prepare` makes both anew."""
    for step in range(steps_max):
        act, check = prepare()
        strike = _Strike(step)
        strike.run(act)
        if not strike.has_met:
            return step
        check()
    raise AssertionError(f"more than {steps_max} places: do less")


class _Strike:
    def __init__(self, step: int) -> None:
        self._left = step
        self.has_met = False

    def run(self, act: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            act()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        names, past = frame.f_code.co_code, ["RESUME", "RESUME"]

        def step(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode" and not self.has_met:
                if _hears_signals(*past):
                    self._strike()
                past[:] = past[1], dis.opname[names[frame.f_lasti]]
            return step

        _trace_each(frame, step, opcodes=True)
        return step

    def _strike(self) -> None:
        if self._left == 0:
            self.has_met = True
            raise KeyboardInterrupt
        self._left -= 1


def _trace_each(frame: FrameType, tracer: Callable[..., Any], *, opcodes: bool) -> None:
    """No lines. From 3.13 on, opcodes are traced of a frame that has its tracer already."""
    frame.f_trace = tracer
    frame.f_trace_opcodes, frame.f_trace_lines = opcodes, False


def _hears_signals(before: str, name: str) -> bool:
    """Behind that instruction, and the one before it. A `with` calls what it enters by itself."""
    is_call = name.startswith("CALL") and before != "LOAD_SPECIAL"
    return is_call or name in ("RESUME", "JUMP_BACKWARD")
