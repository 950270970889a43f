"""Every error that parkade raises, with its code.

    ParkadeError
    |-- ConfigError                    PK-107 option   PK-111 directory   PK-112 descriptors
    |   |                              PK-210 delay    PK-303 template    PK-304 cron
    |   |                              PK-305 name     PK-306 handler
    |   `-- DashboardAuthMissing       PK-601
    |-- EngineInUse                    PK-101
    |-- ForkedEngine                   PK-102
    |-- ShardMismatch                  PK-103
    |-- FormatTooNew                   PK-104
    |-- StorageDamaged                 PK-105
    |-- StorageError (OSError)         PK-109
    |   `-- StorageFull                PK-106
    |-- MissingExtra (ImportError)     PK-108
    |-- BlockingInEventLoop            PK-201
    |-- PayloadError (TypeError)       PK-202
    |-- NaiveDatetime (ValueError)     PK-203
    |-- DuplicateTicket                PK-204
    |-- Backpressure                   PK-205
    |-- EngineClosed                   PK-206
    |-- WaitInsideAttempt (RuntimeError)  PK-207
    |-- NoAttempt (RuntimeError)       PK-208
    |-- PartialSubmit                  PK-209
    |-- SubmitReentered (RuntimeError) PK-211
    |-- UnknownTask (LookupError)      PK-301
    |-- UnknownTicket (LookupError)    PK-406
    |-- WorkflowChanged                PK-501
    `-- TicketError
        |-- TicketFailed               PK-401
        |-- TicketCancelled            PK-402
        |-- TicketExpired              PK-403
        |-- ResultTimeout (TimeoutError)  PK-404
        |-- ResultGone                 PK-405
        `-- NotDead                    PK-407

A text says what happened, why, and what to do; the code at its end is an anchor in docs/errors.md.
The constructors take the facts, keep them as fields, and write the text. What handlers raise is in
`parkade.verdicts`. Spans are ms, sizes bytes.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from parkade.wording import brief, bytes_text, closest, count_text, shown, shown_error, span_text

if TYPE_CHECKING:
    from parkade.ticket import Ticket

__all__ = [
    "Backpressure", "BlockingInEventLoop", "ConfigError", "DashboardAuthMissing", "DeadReason",
    "DuplicateTicket", "EngineClosed", "EngineInUse", "ForkedEngine", "FormatTooNew",
    "MissingExtra", "NaiveDatetime", "NoAttempt", "NotDead", "ParkadeError", "PartialSubmit",
    "PayloadError", "ResultGone", "ResultTimeout", "ShardMismatch", "StorageDamaged",
    "StorageError", "StorageFull", "TicketCancelled", "TicketError", "TicketExpired",
    "TicketFailed", "UnknownTask", "UnknownTicket", "WaitInsideAttempt", "WorkflowChanged",
]  # fmt: skip

NAMES_SHOWN = 5

DeadReason: TypeAlias = Literal[
    "failed", "exhausted", "late", "unsafe", "ambiguous", "crashed", "bad_payload"
]


class ParkadeError(Exception):
    """Base of all errors of this library. `code` is stable: match on it, not on the text."""

    code: str = "PK-000"

    def __init__(self, text: str) -> None:
        super().__init__(f"{text} [{self.code}]")

    @property
    def anchor(self) -> str:
        """Where the documentation tells of this error."""
        return f"docs/errors.md#{self.code}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take facts, not the text that `args` holds: copying goes around them.
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(cls: type[ParkadeError], args: tuple[Any, ...]) -> ParkadeError:
    error = cls.__new__(cls, *args)
    error.args = args
    return error


# ------------------------------------------------------------------------------------ set-up


class ConfigError(ParkadeError):
    """An option, a name, a template or a handler that cannot be right. `code` says which kind."""

    code = "PK-107"

    def __init__(self, text: str, *, code: str = "PK-107") -> None:
        self.code = code
        super().__init__(text)

    @classmethod
    def option(cls, call: str, name: str, value: object, advice: str) -> Self:
        """PK-107 for one bad value: `Engine(durability='fsync'): use ...`."""
        return cls(f"{call}({name}={shown(value)}): {advice}")

    @classmethod
    def unknown_option(cls, call: str, name: str, known: Iterable[str]) -> Self:
        """PK-107 for an option that does not exist, with the one that may have been meant."""
        names = sorted(known)
        near = closest(name, names)
        hint = f"did you mean {near}=?" if near else f"it takes {', '.join(names)}"
        return cls(f"{call}({name}=...): there is no such option; {hint}")


class DashboardAuthMissing(ConfigError):
    """A dashboard was asked for without saying who may see it."""

    def __init__(self) -> None:
        super().__init__(
            'engine.dashboard() needs auth=: a function returning None, "read", "operate" or '
            '"admin". For a laptop: auth="open-on-loopback"',
            code="PK-601",
        )


class EngineInUse(ParkadeError):
    """Another process owns the directory."""

    code = "PK-101"

    def __init__(
        self,
        directory: str,
        *,
        pid: int | None = None,
        command: str = "",
        host: str = "",
        open_for_ms: int | None = None,
        is_here: bool = False,
    ) -> None:
        self.directory, self.pid, self.command, self.host = directory, pid, command, host
        self.open_for_ms, self.is_here = open_for_ms, is_here
        if is_here:
            super().__init__(
                f"{directory} is already open in this process, by another Engine. Make one, and "
                "import it wherever it is used"
            )
            return
        since = "" if open_for_ms is None else f"started {span_text(open_for_ms)} ago"
        place = f"{since} on {host}".strip() if host else since
        about = ", ".join(part for part in (command, place) if part)
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"{directory} is already open in {owner}{f' ({about})' if about else ''}. "
            "One process owns a parkade directory. Run a single worker process (uvicorn --workers "
            "1; threads and asyncio still run in parallel), or give this process its own "
            f"directory. To look without owning it: parkade --dir {directory} status"
        )


class ForkedEngine(ParkadeError):
    """An engine was used in a fork of the process that opened it."""

    code = "PK-102"

    def __init__(self, *, opened_in_pid: int, pid: int) -> None:
        self.opened_in_pid, self.pid = opened_in_pid, pid
        super().__init__(
            f"This engine was opened in process {opened_in_pid} and is now used in its fork "
            f"{pid}. Open it after forking: gunicorn post_worker_init, or drop --preload"
        )


class ShardMismatch(ParkadeError):
    """The constructor asks for another number of shards than the directory has."""

    code = "PK-103"

    def __init__(self, directory: str, *, asked: int, found: int) -> None:
        self.directory, self.asked, self.found = directory, asked, found
        super().__init__(
            f"Engine(shards={asked}) but {directory} has {found} shards. Leave shards out to use "
            f"{found}, or run: parkade reshard {directory} --to {asked} (engine stopped)"
        )


class FormatTooNew(ParkadeError):
    """The files were written by a newer parkade."""

    code = "PK-104"

    def __init__(
        self,
        directory: str,
        *,
        written_by: str,
        written_format: int,
        version: str,
        format_max: int,
        backup_before: str | None = None,
    ) -> None:
        self.directory, self.written_by, self.written_format = directory, written_by, written_format
        self.version, self.format_max, self.backup_before = version, format_max, backup_before
        older = f"made before {backup_before}" if backup_before else f"of parkade {version}"
        super().__init__(
            f"{directory} was written by parkade {written_by} (format {written_format}); this is "
            f"parkade {version} (format ≤{format_max}). Upgrade, or restore a backup {older}"
        )


class MissingExtra(ParkadeError, ImportError):
    """An optional part was used whose packages are not installed."""

    code = "PK-108"

    def __init__(self, part: str, *, packages: str, extra: str) -> None:
        self.part, self.packages, self.extra = part, packages, extra
        super().__init__(
            f"{part} needs {packages}: pip install 'parkade[{extra}]' (uv add 'parkade[{extra}]')"
        )


# ----------------------------------------------------------------------------------- storage


class StorageDamaged(ParkadeError):
    """Stored bytes are not what was written. `shard` is None for the engine-wide house."""

    code = "PK-105"

    def __init__(
        self, directory: str, *, shard: int | None, where: str, reason: str, healthy: int = 0
    ) -> None:
        self.directory, self.shard, self.where = directory, shard, where
        self.reason, self.healthy = reason, healthy
        name, rest = "The house", "Without it the engine does not open"
        if shard is not None:
            name, rest = f"Shard {shard:02d}", f"Shard {shard:02d} is closed"
        if healthy and shard is not None:
            others = f"{healthy} shards are" if healthy > 1 else "shard is"
            keep = "keep" if healthy > 1 else "keeps"
            rest = f"The other {others} fine and {keep} running; shard {shard:02d} is closed"
        super().__init__(
            f"{name} of {directory} is damaged at {where}: {reason}. {rest}. "
            f"Next: parkade --dir {directory} verify --deep"
        )


class StorageError(ParkadeError, OSError):
    """A write failed, and a submit under way may have been accepted or not. `shard` is None for the
    engine-wide house."""

    code = "PK-109"

    def __init__(self, *, shard: int | None, what: str, reason: str) -> None:
        self.shard, self.what, self.reason = shard, what, reason
        if shard is None:
            super().__init__(
                f"The house could not {what} ({reason}). What was asked is not in force, and may "
                "be found in force at the next open: ask again"
            )
            return
        super().__init__(
            f"Shard {shard:02d} could not {what} ({reason}). This submit may or may not have been "
            "accepted: submit again with unique= to be sure. The shard is being recovered"
        )


class StorageFull(StorageError):
    """No room for the next submit; nothing of it was accepted."""

    code = "PK-106"

    def __init__(
        self,
        *,
        shard: int,
        map_bytes: int | None = None,
        free_bytes: int | None = None,
        outcomes_waiting: int = 0,
    ) -> None:
        self.shard, self.map_bytes, self.free_bytes = shard, map_bytes, free_bytes
        self.outcomes_waiting = outcomes_waiting
        self.what, self.reason = "take a submit", "no space left"
        room = [] if map_bytes is None else [f"map {bytes_text(map_bytes, binary=True)}"]
        if free_bytes is not None:
            room.append(f"file system has {bytes_text(free_bytes, binary=True)} free")
        facts = f" ({', '.join(room)})" if room else ""
        ParkadeError.__init__(
            self,
            f"No space left for shard {shard:02d}{facts}. Nothing was accepted; running work "
            "continues, its outcomes are queued in memory "
            f"({count_text(outcomes_waiting)}). Free space or lower keep_done=",
        )

    @classmethod
    def beside(cls, directory: str, need_bytes: int, free_bytes: int) -> "StorageFull":
        """Of work on a closed directory that writes all of it once more."""
        error = cls(shard=0, free_bytes=free_bytes)
        error.what, error.reason = "write a second copy", "no space left"
        need, free = (bytes_text(count, binary=True) for count in (need_bytes, free_bytes))
        error.args = (
            f"{directory} needs {need} beside what it has, and its file system has {free} free. "
            f"Nothing was changed. Free space and try again [{cls.code}]",
        )
        return error


# ------------------------------------------------------------------------------------ submit


class BlockingInEventLoop(ParkadeError):
    """A blocking call on the thread of a running event loop. `call` is like `resize.submit`."""

    code = "PK-201"

    def __init__(self, call: str, *, instead: str, waits_for: str = "the disk") -> None:
        self.call, self.instead, self.waits_for = call, instead, waits_for
        super().__init__(
            f"{call}() waits for {waits_for} and would block this event loop. "
            f"Use: await {instead}(...)"
        )


class PayloadError(ParkadeError, TypeError):
    """Arguments, or a result, that cannot be stored or do not fit the handler's annotations."""

    code = "PK-202"

    def __init__(self, task: str, problem: str, *, argument: str | None = None) -> None:
        self.task, self.argument, self.problem = task, argument, problem
        where = f"{task}({argument}=...):" if argument else f"{task}"
        super().__init__(f"{where} {problem}")


class NaiveDatetime(ParkadeError, ValueError):
    """A point in time without a zone."""

    code = "PK-203"

    def __init__(self, at: datetime, *, what: str = "at") -> None:
        self.at = at
        text = at.isoformat(timespec="auto" if at.second or at.microsecond else "minutes")
        named = f"{what[:-1]}={text})" if what.endswith(")") else f"{what}={text}"
        super().__init__(
            f"{named} has no time zone. Use datetime(..., "
            'tzinfo=ZoneInfo("Europe/Berlin")) or .astimezone()'
        )


class DuplicateTicket(ParkadeError):
    """`on_conflict="error"` and another ticket holds the unique. `standing` tells how it is."""

    code = "PK-204"
    ticket: "Ticket[Any]"

    def __init__(self, ticket: "Ticket[Any]", *, unique: str, standing: str) -> None:
        self.ticket, self.unique, self.standing = ticket, unique, standing
        super().__init__(f'unique="{unique}" is taken by ticket {ticket.id} ({standing})')


class Backpressure(ParkadeError):
    """More tickets are ready than `Engine(max_ready=)` allows."""

    code = "PK-205"

    def __init__(self, *, ready: int, max_ready: int, oldest_ms: int) -> None:
        self.ready, self.max_ready, self.oldest_ms = ready, max_ready, oldest_ms
        super().__init__(
            f"{count_text(ready)} tickets are ready and max_ready={count_text(max_ready)}. Oldest "
            f"waits {span_text(oldest_ms)}. Slow the producer, add threads, or use "
            'when_full="wait"'
        )


class EngineClosed(ParkadeError):
    """The engine was not entered yet, or has stopped. `call` is like `resize.submit`."""

    code = "PK-206"

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(
            f'{call}(): the engine is not open. Use "with engine:", or "async with engine:" in a '
            "coroutine"
        )


class SubmitReentered(ParkadeError, RuntimeError):
    """A signal handler calls the engine in the midst of a submit, or a finalizer on its threads."""

    code = "PK-211"

    def __init__(self, call: str) -> None:
        super().__init__(f"{call}(): its thread is in the midst of other work of the engine")


class WaitInsideAttempt(ParkadeError, RuntimeError):
    """A handler waits for another ticket, and so keeps the place that ticket may need; or for its
    engine to stop, which waits for it (`ticket_id` is its own then, `places` empty)."""

    code = "PK-207"

    def __init__(self, task: str, *, ticket_id: str, places: str = "") -> None:
        self.task, self.ticket_id, self.places = task, ticket_id, places
        super().__init__(
            f"{task} waits for ticket {ticket_id} inside an attempt; with all {places} doing "
            "this nothing can run. Let that ticket's handler submit what comes next, or look at "
            "ticket.info() and raise Snooze until it has ended"
            if places
            else f"{task} stops its own engine inside an attempt, and the engine would wait for "
            "that attempt to end. Stop it from where it was started; under engine.run_forever() "
            "a handler may call signal.raise_signal(signal.SIGTERM)"
        )


class NoAttempt(ParkadeError, RuntimeError):
    """The running attempt was asked for where none runs."""

    code = "PK-208"

    def __init__(self, call: str = "current_attempt") -> None:
        self.call = call
        super().__init__(
            f"{call}() was called outside a handler. In a unit test: "
            "with parkade.testing.fake_attempt(): ..."
        )


class PartialSubmit(ParkadeError):
    """A bulk submit broke half-way; `accepted` holds the tickets that are safe, in order."""

    code = "PK-209"
    accepted: "Sequence[Ticket[Any]]"

    def __init__(
        self, accepted: "Sequence[Ticket[Any]]", *, total: int | None, cause: BaseException
    ) -> None:
        self.accepted, self.total, self.cause = accepted, total, cause
        of = "" if total is None else f" of {count_text(total)}"
        super().__init__(
            f"{count_text(len(accepted))}{of} tickets were accepted before: {shown_error(cause)}. "
            "They are in .accepted; submit the rest again (unique= makes this safe)"
        )


# ----------------------------------------------------------------------- look-up, results


class UnknownTask(ParkadeError, LookupError):
    """No task of that name is registered."""

    code = "PK-301"

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        names = sorted(known)
        self.name, self.close = name, closest(name, names)
        hint = f"Close: {self.close}. " if self.close else ""
        listed = ", ".join(names[:NAMES_SHOWN]) or "none"
        if len(names) > NAMES_SHOWN:
            listed = f"{listed} and {len(names) - NAMES_SHOWN} more"
        super().__init__(f'No task "{brief(name)}" is registered. {hint}Registered: {listed}')


class UnknownTicket(ParkadeError, LookupError):
    """No ticket has that id, here and now."""

    code = "PK-406"

    def __init__(self, ticket_id: str, *, keep_done: str | None = "24h") -> None:
        self.ticket_id, self.keep_done = ticket_id, keep_done
        older = "" if keep_done is None else f'older than keep_done="{keep_done}", '
        super().__init__(f"No ticket {brief(ticket_id)}: mistyped, {older}or of another directory")


class TicketError(ParkadeError):
    """Base of what `result()` raises: there is no result, or not yet."""

    ticket_id: str

    def __init__(self, ticket_id: str, text: str) -> None:
        self.ticket_id = ticket_id
        super().__init__(text)


class TicketFailed(TicketError):
    """The ticket is dead. `error_type` and `remote_traceback` are of its last attempt."""

    code = "PK-401"
    reason: DeadReason

    def __init__(
        self,
        ticket_id: str,
        *,
        task: str,
        attempts: int,
        reason: DeadReason,
        error_type: str = "",
        error: str = "",
        remote_traceback: str = "",
    ) -> None:
        self.task, self.attempts, self.reason = task, attempts, reason
        self.error_type, self.error, self.remote_traceback = error_type, error, remote_traceback
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        cause = ": ".join(part for part in (error_type, error) if part) or reason
        below = "The handler's traceback is below; attempts" if remote_traceback else "Attempts"
        super().__init__(
            ticket_id,
            f"Ticket {ticket_id} ({task}) died after {tries}: {cause}. "
            f"{below}: parkade show {ticket_id}",
        )
        if remote_traceback:
            self.add_note(remote_traceback)


class TicketCancelled(TicketError):
    """The ticket was cancelled."""

    code = "PK-402"

    def __init__(self, ticket_id: str, *, reason: str = "", ago_ms: int | None = None) -> None:
        self.reason, self.ago_ms = reason, ago_ms
        ago = "" if ago_ms is None else f" {span_text(ago_ms)} ago"
        why = f": {reason}" if reason else ""
        super().__init__(ticket_id, f"Ticket {ticket_id} was cancelled{ago}{why}")


class TicketExpired(TicketError):
    """The ticket was not started in time."""

    code = "PK-403"

    def __init__(self, ticket_id: str, *, expires_ms: int) -> None:
        self.expires_ms = expires_ms
        super().__init__(
            ticket_id,
            f"Ticket {ticket_id} was not started within {span_text(expires_ms)} of being due and "
            "expired",
        )


class ResultTimeout(TicketError, TimeoutError):
    """The wait is over, the ticket is not. `why` tells what it waits for."""

    code = "PK-404"

    def __init__(self, ticket_id: str, *, waited_ms: int, why: str = "") -> None:
        self.waited_ms, self.why = waited_ms, why
        standing = f". {why}" if why else ""
        super().__init__(
            ticket_id,
            f"Ticket {ticket_id} is not finished after {span_text(waited_ms)}{standing}",
        )


class ResultGone(TicketError):
    """The ticket is done, and its result is no longer kept."""

    code = "PK-405"

    def __init__(
        self, ticket_id: str, *, finished: str = "", keep_done: str | None = "24h"
    ) -> None:
        self.finished, self.keep_done = finished, keep_done
        when = f" on {finished}" if finished else ""
        kept = f'was kept for {keep_done} (Engine(keep_done="{keep_done}"))'
        if keep_done is None:
            kept = "is no longer kept"
        super().__init__(ticket_id, f"Ticket {ticket_id} finished{when} and its result {kept}")


class NotDead(TicketError):
    """What is for dead tickets was asked of one that is not, or is not any more."""

    code = "PK-407"

    def __init__(self, ticket_id: str, *, call: str, state: str) -> None:
        self.call, self.state = call, state
        text = f"{call}(): ticket {ticket_id} is {state}, not dead: somebody may have acted on it"
        super().__init__(ticket_id, f"{text}. Look at it: parkade show {ticket_id}")


class WorkflowChanged(ParkadeError):
    """Replay met a journal that the code does not agree with."""

    code = "PK-501"

    def __init__(
        self, task: str, *, ticket_id: str, asks: str, has: str, recorded: str, patch: str
    ) -> None:
        self.task, self.ticket_id, self.asks, self.has = task, ticket_id, asks, has
        self.recorded, self.patch = recorded, patch
        super().__init__(
            f"{task} {ticket_id}: the code now asks for {asks} where the journal has {has} "
            f'(recorded {recorded}). Guard new code: if wf.patched("{patch}"): ... The ticket is '
            "held until code and journal agree"
        )
