"""docs/states.md: what becomes of a ticket in each state when each thing happens, as observed.

    python -m kit.state_table > docs/states.md      (make table)

What a caller, a handler, the clock or a crash can bring about is done to an engine (`kit.lives`).
An outcome that meets a ticket which does not run (its attempt was given up, or never was) is told
to a shard alone; then the records of that outcome are applied to it as well, and must change
nothing.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

from kit.lives import CANCELLING, EVENTS, ROWS, RUNNING, RUNNING_ROWS, Event, look
from kit.rig import Rig, fields
from parkade.shard.commands import Cancel, Drop, Expire, Outcome, Settle
from parkade.shard.states import DEAD, PENDING, STATE_NAMES
from parkade.store.record import (
    Buried,
    Cancelled,
    Completed,
    Options,
    Record,
    Retried,
    Snoozed,
)

__all__ = ["document"]

NOTHING = "·"
ALONE = "†"
HOUR_MS = 3_600_000
INTRODUCTION = """\
# What may happen to a ticket

Every state against everything that may happen, as a test run has observed it: `make table` writes
this page, and a test compares it with what it observes. The rules behind it are in
[semantics.md](semantics.md).

A cell says what was answered, if anybody asked, and then the state that the ticket is in if it is
another; `·` stands for nothing. *Maybe applied* is said where the event set it. The ticket has a
unique, three attempts with a minute between them, and expires two hours after its first due time
unless the event says otherwise; it is due in an hour where it is *scheduled*, and due now where it
is *ready*. *Held* is by a pause of its task. What happens to a *running* ticket happens inside its
handler, or ends it; a handler that is started by the event returns at once.

`†`: no caller can bring this about. It was told to a shard alone, and the records of that outcome
were applied to the ticket as well, to no effect.
"""


def document() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for group, events in EVENTS.items():
        parts.append(f"## {group}\n\n{_table(events)}")
    return "\n".join(parts)


def _table(events: tuple[Event, ...]) -> str:
    rows = {row: tuple(_cell(row, event) for event in events) for row in ROWS}
    lines = ["| the ticket is | " + " | ".join(event.name for event in events) + " |"]
    lines.append("|---" * (len(events) + 1) + "|")
    alike: dict[tuple[str, ...], list[str]] = {}
    for row, cells in rows.items():
        alike.setdefault(cells, []).append(row)
    for cells, names in alike.items():
        lines.append(f"| {'; '.join(names)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: str, event: Event) -> str:
    is_public = event.act is not None or (row in RUNNING_ROWS and event.end is not None)
    if is_public:
        return look(row, event) or NOTHING
    return f"{_look_at_shard(row, event.kind)} {ALONE}"


# ------------------------------------------------------------------------ a shard alone


def _look_at_shard(row: str, kind: str) -> str:
    rig = Rig()
    serial = _SHARD_ROWS[row](rig)
    ticket = rig.find(serial)
    fence = 1 if ticket is None else max(ticket.fence - (kind == "late"), 1)
    was = _words(rig, serial)
    if row not in RUNNING_ROWS:
        _check_without_effect(rig, serial, fence, kind)
    told = "done" if kind == "late" else kind
    outcome = Outcome(serial, fence, told, wait_ms=HOUR_MS, max_attempts=3)
    answer = rig.do(Settle([outcome])).answers[0].code
    rig.checked()
    now = _words(rig, serial)
    words = ["refused"] if answer == "refused" else []
    if now[0] != was[0]:
        words.append(now[0])
    if now[1] and not was[1]:
        words.append("maybe applied")
    return ", ".join(words)


def _words(rig: Rig, serial: int) -> tuple[str, bool]:
    """The state as people call it, and whether something may have been applied."""
    ticket = rig.find(serial)
    if ticket is None:
        return "gone", False
    words = STATE_NAMES[ticket.state]
    if ticket.state == PENDING:
        words = "ready" if ticket.due_ms <= rig.now_ms else "scheduled"
    elif ticket.state == DEAD:
        words = f"dead `{ticket.why}`"
    return words, ticket.maybe_applied


def _check_without_effect(rig: Rig, serial: int, fence: int, kind: str) -> None:
    ticket = rig.find(serial)
    before = None if ticket is None else fields(ticket)
    for record in _records(serial, fence, rig.now_ms):
        rig.apply(record)
        after = rig.find(serial)
        assert (None if after is None else fields(after)) == before, (kind, record)


def _records(serial: int, fence: int, now_ms: int) -> list[Record]:
    """All that an attempt may end as."""
    causes = ("failed", "timeout", "lease", "lost")
    reasons = ("failed", "exhausted", "late", "unsafe", "ambiguous", "crashed", "bad_payload")
    return [
        Completed(serial, fence, now_ms, b"late"),
        Snoozed(serial, fence, now_ms, now_ms + 1),
        Cancelled(serial, fence, now_ms, "late"),
        *(Retried(serial, fence, now_ms, now_ms + 1, cause) for cause in causes),
        *(Buried(serial, fence, now_ms, why) for why in reasons),
    ]


def _pending(delay_ms: int) -> Callable[[Rig], int]:
    return lambda rig: rig.submit(delay_ms, options=Options(expires_ms=2 * HOUR_MS))


def _running(rig: Rig) -> int:
    """In its second attempt: one that an older outcome may come to."""
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial, "transient", wait_ms=1)
    rig.pass_ms(1)
    rig.run(serial)
    return serial


def _cancelling(rig: Rig) -> int:
    serial = _running(rig)
    rig.do(Cancel(serial, "enough"))
    return serial


def _ended(kind: str, **more: Any) -> Callable[[Rig], int]:
    def make(rig: Rig) -> int:
        serial = rig.submit()
        rig.run(serial)
        rig.settle(serial, kind, **more)
        return serial

    return make


def _crashed(rig: Rig) -> int:
    serial = rig.submit()
    for _ in range(4):
        rig.run(serial)
        rig.settle_lost()
        rig.pass_ms(HOUR_MS)
    return serial


def _cancelled(rig: Rig) -> int:
    serial = rig.submit()
    rig.do(Cancel(serial))
    return serial


def _expired(rig: Rig) -> int:
    serial = _pending(0)(rig)
    rig.pass_ms(3 * HOUR_MS)
    rig.do(Expire(rig.settle_down()))
    return serial


def _gone(rig: Rig) -> int:
    serial = _ended("failed")(rig)
    rig.do(Drop([serial]))
    return serial


_SHARD_ROWS: dict[str, Callable[[Rig], int]] = {
    "scheduled": _pending(HOUR_MS),
    "ready": _pending(0),
    "ready, held": _pending(0),
    "scheduled, tried": _ended("transient", wait_ms=60_000),
    RUNNING: _running,
    CANCELLING: _cancelling,
    "done": _ended("done"),
    "dead `failed`": _ended("failed"),
    "dead `exhausted`": _ended("transient", max_attempts=1),
    "dead `late`": _ended("transient", max_elapsed_ms=1),
    "dead `unsafe`": _ended("unsafe"),
    "dead `ambiguous`": _ended("ambiguous"),
    "dead `crashed`": _crashed,
    "dead `bad_payload`": _ended("bad_payload"),
    "cancelled": _cancelled,
    "expired": _expired,
    "gone": _gone,
}
assert list(_SHARD_ROWS) == list(ROWS)


def main() -> None:
    """Write it to standard output."""
    logging.disable(logging.CRITICAL)
    sys.stdout.write(document())


if __name__ == "__main__":
    main()
