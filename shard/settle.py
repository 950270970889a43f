"""Starts and the ends of attempts, decided. Changes nothing.

What an outcome leads to is docs/semantics.md, After an attempt; the order of the refusals before a
start is Before a start. A table of functions by kind of outcome is at the end.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from parkade.shard.commands import (
    AllSettled,
    AllStarted,
    Answer,
    LostItem,
    Outcome,
    Settle,
    SettleLost,
    Start,
    StartAlike,
    StartItem,
    Verdict,
)
from parkade.shard.keys import Keys
from parkade.shard.memory import UNREAD
from parkade.shard.retry import DEATHS_MAX, due_after, expiry_of, is_exhausted, is_late
from parkade.shard.states import DONE, NO_FENCE, PENDING, RUNNING
from parkade.shard.ticket import Ticket
from parkade.shard.view import View
from parkade.store.record import (
    Buried,
    Cancelled,
    Completed,
    ErrorText,
    Expired,
    Late,
    Record,
    Released,
    Retried,
    Snoozed,
    Started,
)

__all__ = [
    "AMBIGUOUS",
    "decide_plain_starts",
    "decide_settle",
    "decide_settle_lost",
    "decide_start",
]

UNBOUNDED: Final = 1 << 62  # attempts
AMBIGUOUS: Final = 1
"""The `on_crash` of a ticket whose lost attempt a person has to look at."""


class Times(NamedTuple):
    """Now by the wall clock, and by the settled clock that destroys; ms."""

    now_ms: int
    settled_ms: int


# ---------------------------------------------------------------------- start


def decide_start(
    view: View,
    command: Start,
    times: Times,
    keys: Keys,
    has_room: bool,
) -> Verdict:
    starts: dict[int, list[int]] = {}
    taken: set[int] = set()
    starting: dict[str, list[int]] = {}  # key -> how many of it each that starts lets run
    allows_suspect = command.allows_suspect
    for item in command.items:
        serial = item.serial
        ticket = view.ticket(serial)
        if ticket is UNREAD:
            continue
        if ticket is None or serial in taken:
            view.refuse("gone" if ticket is None else "not_pending", serial)
            continue
        taken.add(serial)
        refusal = _why_not(view, item, ticket, times)
        key = ticket.key
        if refusal is None and key is not None:
            has_key_room = keys.room_to_run(ticket, starting.get(key, ()))
            refusal = None if has_key_room else "key_busy"
        if refusal is None and ticket.is_suspect and not allows_suspect:
            refusal = "suspect"
        if refusal is None and not has_room:
            refusal = "full"
        if refusal is not None:
            view.refuse(refusal, serial)
            continue
        if key is not None:
            starting.setdefault(key, []).append(keys.gate.places(ticket))
        allows_suspect = allows_suspect and not ticket.is_suspect
        starts.setdefault(item.on_crash, []).append(serial)
        view.answers.append(Answer("started", serial, ticket.part, ticket.fence + 1))
    for on_crash, serials in starts.items():
        view.records.append(Started(serials, times.now_ms, on_crash))
    return view.verdict()


def decide_plain_starts(view: View, command: StartAlike, now_ms: int) -> Verdict | None:
    """Starts of tickets of which nothing is to be said by itself; None: some are not like that."""
    hot, tickets = view.memory.hot, list[Ticket]()
    attempts_max = UNBOUNDED if command.max_attempts is None else command.max_attempts
    for serial in command.serials:
        ticket = hot.get(serial)
        if (
            ticket is None
            or ticket.state != PENDING
            or ticket.due_ms > now_ms
            or ticket.options is not None
            or ticket.key is not None
            or ticket.is_suspect
            or ticket.attempts >= attempts_max
        ):
            return None
        tickets.append(ticket)
    if len(set(command.serials)) < len(tickets):
        return None
    answers = [(ticket.serial, ticket.part, ticket.fence + 1) for ticket in tickets]
    return Verdict([Started(command.serials, now_ms, command.on_crash)], AllStarted(answers))


def _why_not(view: View, item: StartItem, ticket: Ticket, times: Times) -> str | None:
    """Why the ticket may not start, ending it if that is for good; None: it may."""
    serial = item.serial
    if ticket.state != PENDING:
        return "not_pending"
    if ticket.due_ms > times.now_ms:
        return "not_due"
    if ticket.options is None and item.max_elapsed_ms is None:
        if not is_exhausted(ticket, item.max_attempts):
            return "outlived" if item.is_outlived else None
        view.records.append(_bury_pending(ticket, times, "exhausted"))
        return "exhausted"
    expiry_ms = expiry_of(ticket)
    if expiry_ms is not None and expiry_ms <= times.settled_ms:
        view.records.append(Expired(serial, times.now_ms))
        return "expired"
    if is_late(ticket, item.max_elapsed_ms, times.settled_ms):
        view.records.append(_bury_pending(ticket, times, "late"))
        return "late"
    if is_exhausted(ticket, item.max_attempts):
        view.records.append(_bury_pending(ticket, times, "exhausted"))
        return "exhausted"
    if expiry_ms is not None and expiry_ms <= times.now_ms:
        return "clock"
    if is_late(ticket, item.max_elapsed_ms, times.now_ms):
        return "clock"
    return "outlived" if item.is_outlived else None


def _bury_pending(ticket: Ticket, times: Times, why: str) -> Buried:
    return Buried(ticket.serial, NO_FENCE, times.now_ms, why)


# ---------------------------------------------------------------------- settle


def decide_settle(view: View, command: Settle, times: Times) -> Verdict:
    return _all_returned(view, command, times.now_ms) or _each_settled(view, command, times)


def _all_returned(view: View, command: Settle, now_ms: int) -> Verdict | None:
    """What most outcomes are: handlers that returned, of attempts that are the latest. None: some
    are not."""
    hot, records = view.memory.hot, list[Record]()
    answers: list[tuple[int, int, int]] = []
    for outcome in command.outcomes:
        serial, fence = outcome.serial, outcome.fence
        ticket = hot.get(serial)
        if (
            ticket is None
            or ticket.fence != fence
            or ticket.state != RUNNING
            or outcome.kind != "done"
        ):
            return None
        records.append(Completed(serial, fence, now_ms, outcome.result, outcome.born))
        answers.append((serial, ticket.part, fence))
    if len({serial for serial, _, _ in answers}) < len(answers):
        return None
    return Verdict(records, AllSettled(answers))


def _each_settled(view: View, command: Settle, times: Times) -> Verdict:
    settled: set[int] = set()
    hot = view.memory.hot
    for outcome in command.outcomes:
        serial = outcome.serial
        ticket = hot.get(serial)
        is_current = (
            ticket is not None
            and ticket.state == RUNNING
            and ticket.fence == outcome.fence
            and serial not in settled
        )
        if not is_current:
            _refuse_outcome(view, outcome, serial in settled)
            continue
        assert ticket is not None
        settled.add(serial)
        record = _SETTLERS[outcome.kind](ticket, outcome, times)
        view.accept(record, Answer("settled", serial, ticket.part, outcome.fence))
    return view.verdict()


def _refuse_outcome(view: View, outcome: Outcome, is_repeated: bool) -> None:
    """An attempt that was given up reports: that counts for nothing, but a success is noted."""
    serial, fence = outcome.serial, outcome.fence
    if outcome.kind == "done" and not is_repeated:
        ticket = view.ticket(serial)
        if ticket is UNREAD:
            return
        if ticket is not None and _was_given_up(ticket, fence) and not ticket.maybe_applied:
            view.records.append(Late(serial, fence))
    view.refuse("refused", serial)


def _was_given_up(ticket: Ticket, fence: int) -> bool:
    if fence == ticket.fence:
        return ticket.state not in (RUNNING, DONE)
    return 0 < fence < ticket.fence


def _settle_done(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    return Completed(ticket.serial, ticket.fence, times.now_ms, outcome.result, outcome.born)


def _settle_transient(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    return _retry(ticket, outcome, times, "failed", False)


def _settle_unknown(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    if ticket.cancel_reason is None and ticket.on_crash == AMBIGUOUS:
        return _bury(ticket, outcome, times, "ambiguous", True)
    return _retry(ticket, outcome, times, outcome.kind, True)


def _retry(
    ticket: Ticket, outcome: Outcome, times: Times, cause: str, maybe_applied: bool
) -> Record:
    """Again after a wait, unless the budget or the time is spent; budget first."""
    if ticket.cancel_reason is not None:
        return _cancel(ticket, outcome, times, maybe_applied)
    if is_exhausted(ticket, outcome.max_attempts):
        return _bury(ticket, outcome, times, "exhausted", maybe_applied)
    if is_late(ticket, outcome.max_elapsed_ms, times.settled_ms + outcome.wait_ms):
        return _bury(ticket, outcome, times, "late", maybe_applied)
    due_ms = due_after(times.now_ms, outcome.wait_ms)
    return Retried(
        ticket.serial,
        ticket.fence,
        times.now_ms,
        due_ms,
        cause,
        outcome.error,
        maybe_applied=maybe_applied,
    )


def _settle_failed(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    return _end_failed(ticket, outcome, times, outcome.kind, False)


def _settle_ambiguous(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    return _end_failed(ticket, outcome, times, "ambiguous", True)


def _settle_result_lost(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    return _end_failed(ticket, outcome, times, "failed", True)


def _end_failed(
    ticket: Ticket, outcome: Outcome, times: Times, why: str, maybe_applied: bool
) -> Record:
    if ticket.cancel_reason is not None:
        return _cancel(ticket, outcome, times, maybe_applied)
    return _bury(ticket, outcome, times, why, maybe_applied)


def _settle_snooze(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    if ticket.cancel_reason is not None:
        return _cancel(ticket, outcome, times, False)
    if ticket.snoozes >= outcome.max_snoozes:
        weary = msgspec.structs.replace(outcome, error=_too_often(ticket, outcome))
        return _bury(ticket, weary, times, "exhausted", False)
    due_ms = due_after(times.now_ms, outcome.wait_ms)
    return Snoozed(ticket.serial, ticket.fence, times.now_ms, due_ms, outcome.reason, outcome.born)


def _too_often(ticket: Ticket, outcome: Outcome) -> ErrorText:
    """A snooze is no error; that it was one too many is what the ticket died of."""
    text = f"put off once more after {ticket.snoozes} times, which is max_snoozes"
    return ErrorText("Snooze", f"{text}: {outcome.reason}" if outcome.reason else text)


def _settle_cancelled(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    return _cancel(ticket, outcome, times, False)


def _settle_released(ticket: Ticket, outcome: Outcome, times: Times) -> Record:
    begun = outcome.has_begun
    if ticket.cancel_reason is not None:
        return _cancel(ticket, outcome, times, begun)
    if begun and ticket.on_crash == AMBIGUOUS:
        return _bury(ticket, outcome, times, "ambiguous", True)
    due_ms = due_after(times.now_ms, outcome.wait_ms)
    return Released(ticket.serial, ticket.fence, times.now_ms, due_ms, begun)


def _bury(ticket: Ticket, outcome: Outcome, times: Times, why: str, maybe_applied: bool) -> Buried:
    return Buried(
        ticket.serial,
        ticket.fence,
        times.now_ms,
        why,
        outcome.error,
        maybe_applied,
        born=outcome.born,
    )


def _cancel(ticket: Ticket, outcome: Outcome, times: Times, maybe_applied: bool) -> Cancelled:
    reason = outcome.reason or ticket.cancel_reason or ""
    return Cancelled(
        ticket.serial,
        ticket.fence,
        times.now_ms,
        reason,
        outcome.error,
        maybe_applied,
        born=outcome.born,
    )


_SETTLERS: Final[dict[str, Callable[[Ticket, Outcome, Times], Record]]] = {
    "done": _settle_done,
    "transient": _settle_transient,
    "timeout": _settle_unknown,
    "lease": _settle_unknown,
    "lost": _settle_unknown,
    "failed": _settle_failed,
    "unsafe": _settle_failed,
    "bad_payload": _settle_failed,
    "ambiguous": _settle_ambiguous,
    "result_lost": _settle_result_lost,
    "snooze": _settle_snooze,
    "drop": _settle_cancelled,
    "cancelled": _settle_cancelled,
    "released": _settle_released,
}


# ---------------------------------------------------------------------- lost attempts


def decide_settle_lost(view: View, command: SettleLost, times: Times) -> Verdict:
    """The process died: settle every attempt that ran, by what its Started said."""
    settled: set[int] = set()
    for item in command.items:
        serial = item.serial
        ticket = view.ticket(serial)
        if ticket is UNREAD:
            continue
        if (
            ticket is None
            or ticket.state != RUNNING
            or ticket.fence != item.fence
            or serial in settled
        ):
            view.refuse("refused", serial)
            continue
        settled.add(serial)
        record = _lost(ticket, item, times)
        view.accept(record, Answer("settled", serial, ticket.part, item.fence))
    return view.verdict()


def _lost(ticket: Ticket, item: LostItem, times: Times) -> Record:
    serial, fence, now_ms = ticket.serial, ticket.fence, times.now_ms
    deaths = 1 if item.is_alone else 0
    why = None
    if ticket.cancel_reason is not None:
        return Cancelled(serial, fence, now_ms, ticket.cancel_reason, None, True)
    if ticket.on_crash == AMBIGUOUS:
        why = "ambiguous"
    elif deaths and ticket.deaths + 1 >= DEATHS_MAX:
        why = "crashed"
    elif is_exhausted(ticket, item.max_attempts):
        why = "exhausted"
    elif is_late(ticket, None, times.settled_ms + item.wait_ms):
        why = "late"
    if why is not None:
        return Buried(serial, fence, now_ms, why, maybe_applied=True, deaths=deaths)
    due_ms = due_after(now_ms, item.wait_ms)
    return Retried(serial, fence, now_ms, due_ms, "lost", deaths=deaths, maybe_applied=True)
