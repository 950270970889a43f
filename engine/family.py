"""The children of one attempt: submitted in the handler, and made by its outcome or not at all.

Each has its id at once. They are written inside the record of the outcome that the handler states
itself: it returns, or raises Snooze, Drop, Fail, Unsafe or Ambiguous. An attempt that ends in any
other way takes its children with it, and the next one submits them anew.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from parkade.calls import Call, Prepared
from parkade.draft_sizes import draft_bytes
from parkade.errors import ConfigError, NoAttempt
from parkade.options import CONFLICTS
from parkade.placing import Placing
from parkade.store.record import Submitted

__all__ = ["CHILDREN_MAX", "Births", "Family"]

CHILDREN_MAX = 1_000  # of one outcome, which is one command
CHILDREN_BYTES_MAX = 4_000_000  # and one frame, unless a single child is larger
INHERITING_MAX = 64  # children that take their parent's part: the rest is spread over the shards
_ERROR = CONFLICTS.index("error")


class Births(Protocol):
    """To whom an attempt submits its children."""

    def submit(self, call: Call[Any]) -> Any:
        """The handle of a child."""
        ...


class Family:
    """Of one attempt of a ticket with this part. A handler may use it from several threads."""

    def __init__(
        self,
        placing: Placing,
        part: int,
        *,
        now_ms: Callable[[], int],
        payload_bytes_max: int,
        handle: Callable[[Submitted, Any], Any],
    ) -> None:
        """`handle` makes what the handler gets of a draft and the task that was called."""
        self._placing = placing
        self._part = part
        self._now_ms = now_ms
        self._payload_bytes_max = payload_bytes_max
        self._handle = handle
        self._lock = threading.RLock()  # a finalizer may submit one too
        self._drafts: list[Submitted] = []
        self._bytes = 0
        self._inheriting = 0
        self._is_over = False

    def submit(self, call: Call[Any]) -> Any:
        """The handle of a child. Raises `ConfigError`, `PayloadError` as a submit does."""
        if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError.option(
                "attempt", "submit", call, "give it a call, like task.call(...)"
            )
        prepared = call.prepare(self._now_ms(), payload_bytes_max=self._payload_bytes_max)
        return self._handle(self.add(prepared), call.bound)

    def add(self, prepared: Prepared) -> Submitted:
        """The draft of a child, with its serial and its part; for whoever prepared the call
        elsewhere. Raises `ConfigError`, and `NoAttempt` when the attempt is over."""
        if prepared.on_conflict == _ERROR:
            raise ConfigError.option(
                f"{prepared.task}.options", "on_conflict", "error",
                'use "return" or "replace": whether its unique is taken shows when it is made',
            )  # fmt: skip
        is_plain = prepared.key is None and prepared.unique is None
        with self._lock:
            if self._is_over:
                raise NoAttempt("attempt.submit")
            if len(self._drafts) >= CHILDREN_MAX:
                raise ConfigError(
                    f"attempt.submit({prepared.task}): an outcome has at most {CHILDREN_MAX} "
                    "children. Submit a ticket for each thousand of them"
                )
            inherits = is_plain and self._inheriting < INHERITING_MAX
            draft = self._placing.child(prepared, self._part if inherits else None)
            size = draft_bytes(draft)
            if self._drafts and self._bytes + size > CHILDREN_BYTES_MAX:
                raise ConfigError(
                    f"attempt.submit({prepared.task}): the children of an outcome have at most "
                    f"{CHILDREN_BYTES_MAX:,} bytes. Pass ids instead of the things themselves"
                )
            self._inheriting += inherits
            self._bytes += size
            self._drafts.append(draft)
        return draft

    def end(self) -> list[Submitted] | None:
        """The attempt is over: its children, in the order of their submits; None: there are none.
        Who submits another one is refused from now on."""
        with self._lock:
            self._is_over = True
            return self._drafts or None
