"""What a shard must remember: a model fed with each decision, and each state that it has been in.

The witness stands beside a live shard. It says what each command must be answered, keeps a copy of
every ticket as each LSN left it, and notes which LSN was told to the outside. So it can say of a
recovered shard whether it is in a state that ever was, and whether that is new enough.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from kit.model import DEAD, DONE, PENDING, RUNNING, Entry, Model
from kit.store_image import StoreImage
from kit.traffic import Traffic
from parkade.shard import Shard, Unread, unique_name_of
from parkade.shard.check import check
from parkade.shard.commands import (
    CONFLICT_REPLACE,
    CONFLICT_RETURN,
    Answer,
    Bookmark,
    Cancel,
    CancelMany,
    Command,
    Deliver,
    Drop,
    Expire,
    Forget,
    Hand,
    Refusal,
    Reschedule,
    Resolve,
    Revive,
    Settle,
    SettleLost,
    Start,
    StartAlike,
    StartItem,
    Submit,
    UniqueRow,
    Verdict,
)  # fmt: skip
from parkade.shard.history import AttemptRow
from parkade.shard.outbox import NO_PLACE, Place
from parkade.shard.ticket import Ticket, ticket_of
from parkade.shard.unique import HELD, alias_name
from parkade.store.record import Bookmarked, Cancelled, Delivered, Record, Submitted

__all__ = ["Shadow", "StoreImage", "Witness", "state_of", "without_progress"]

ALL = 1 << 20
HEADS_FIELDS = (
    "state", "due_ms", "first_due_ms", "attempts", "fence", "snoozes", "deaths", "is_suspect",
    "maybe_applied", "is_ambiguous", "why", "cancel_reason", "progress", "has_bookmark",
)  # fmt: skip


class Shadow(NamedTuple):
    """A ticket as it was at an LSN: every field of its head, its body, its ended attempts, and
    what an attempt saved."""

    head: tuple[Any, ...]
    body: bytes | None
    attempts: tuple[AttemptRow, ...]
    bookmark: bytes | None = None


def state_of(core: Shard, image: StoreImage) -> dict[int, Shadow]:
    """Every ticket there is, memory over store."""
    found: dict[int, Shadow] = {}
    plain = {ticket.serial: ticket for ticket in core.memory.plain_tickets()}
    for serial in sorted({*image.heads, *core.hot, *plain}):
        known = plain.get(serial) or core.look(serial)
        ticket = image.heads.get(serial) if isinstance(known, Unread) else known
        if ticket is None:
            continue
        rows = image.attempts.get(serial, {}) | {r.fence: r for r in core.attempt_rows(serial)}
        found[serial] = Shadow(
            fields_of(ticket),
            body_of(core, image, serial),
            tuple(rows[fence] for fence in sorted(rows)),
            bookmark_of(core, image, serial),
        )
    return found


def body_of(core: Shard, image: StoreImage, serial: int) -> bytes | None:
    body = core.body(serial)
    return image.bodies.get(serial) if isinstance(body, Unread) else body


def bookmark_of(core: Shard, image: StoreImage, serial: int) -> bytes | None:
    known = core.bookmark(serial) if serial in core.hot else Unread.UNREAD
    return image.bookmarks.get(serial) if isinstance(known, Unread) else known


fields_of: Callable[[Ticket], tuple[Any, ...]] = msgspec.structs.astuple


def without_progress(head: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields of a ticket save what its attempt last told."""
    return (*head[:_PROGRESS], None, *head[_PROGRESS + 1 :])


@dataclass
class Point:
    """A state between two commands. Its entries are copies that points share and nobody changes."""

    model: Model
    tickets: dict[int, Shadow]
    rows: dict[bytes, UniqueRow | None]


class Witness:
    """Of one shard, through all its lives. `knows_routes`: what it brings forth is told by its
    payload, as the stepped shard's routes are."""

    def __init__(self, *, knows_routes: bool = True) -> None:
        self.knows_routes = knows_routes
        self.traffic = Traffic()
        self.model = Model()
        self.tickets: dict[int, Shadow] = {}
        self.rows: dict[bytes, UniqueRow | None] = {}
        self.told_lsn = self.started = 0
        # By whom and until when a name was taken that has been over: its row may be gone by now,
        # and a clock that is set back does not bring it again.
        self.over: set[tuple[int, int | None]] = set()
        self.bearing: dict[int, list[Submitted]] = {}
        self.alias_names: dict[bytes, int] = {}
        self.names: dict[int, bytes] = {}
        self.points: dict[int, Point] = {}
        self.versions: dict[int, list[tuple[int, Shadow | None]]] = {}
        self._kept: dict[int, Entry] = {}
        self._keep(0, ())

    # ------------------------------------------------------------------ as it lives

    def decided(
        self, command: Command, verdict: Verdict, times: tuple[int, int], has_room: bool
    ) -> None:
        """A command was decided, at a time by the wall clock and by the settled one: its answers
        must be the model's."""
        answers = list(verdict.answers)
        self.passes(times[1])
        replaced = {record.serial for record in verdict.records if isinstance(record, Cancelled)}
        gone = {taken for taken in self.over if taken[0] not in replaced}
        expected = _Expected(self.model, answers, *times, has_room, gone).codes(command)
        codes = [answer.code for answer in answers]
        assert codes == expected, (command, codes, expected)
        self.started += codes.count("started") if isinstance(command, Start | StartAlike) else 0
        self.bearing = births_of(command)

    def passes(self, settled_ms: int) -> None:
        """It is that late for what ends names."""
        taken = {*self.model.names.values(), *self.model.aliases.values()}
        self.over |= {
            (serial, end) for serial, end in taken if end is not None and end <= settled_ms
        }

    def told_along(self, records: Sequence[Record]) -> None:
        """Progress that goes ahead of what was decided."""
        for record in records:
            entry = self.model.tickets.get(getattr(record, "serial", 0))
            if isinstance(record, Bookmarked) and entry is not None and entry.state != DONE:
                entry.progress = record.progress

    def applied(self, core: Shard, records: list[Record], image: StoreImage) -> None:
        """Records were applied: what they left is noted under the LSN of the last."""
        for nth, record in enumerate(records):
            self._bear(core, core.lsn - len(records) + 1 + nth, record)
        self.traffic.note(records, core.lsn, core.epoch, core.births.shard_count)
        touched = {serial for record in records for serial in _touched(core, record)}
        for serial in touched:
            self._note(core, serial, image)
        self._keep(core.lsn, touched)

    def is_written(self, draft: Submitted, lsn: int) -> None:
        """A caller writes it under this LSN; the shard hears of it afterwards."""
        self.model.submit(draft, 0, 0, 0)
        shadow = Shadow(fields_of(ticket_of(draft)), draft.payload, ())
        self.tickets[draft.serial] = shadow
        self.versions.setdefault(draft.serial, []).append((lsn, shadow))
        self._keep(lsn, [draft.serial])

    def _bear(self, core: Shard, lsn: int, record: Record) -> None:
        """What an end brings forth is what its attempt submitted, and its route; each in its place,
        in order."""
        known: Any = record
        born, sent = getattr(known, "born", None) or [], getattr(known, "sent", None) or []
        births = sorted([*born, *sent], key=lambda draft: draft.serial)
        if not births:
            return
        if self.knows_routes:
            self._check_births(known.serial, births)
        number, count = core.births.number, core.births.shard_count
        for draft in births:
            is_home = draft.part % count == number and draft.key is None and draft.unique is None
            assert (draft in born) == is_home, draft
        for draft in born:
            self.model.submit(draft, 0, 0, 0)
        for nth, draft in enumerate(sent):
            entry = ((core.epoch, lsn, nth), draft)
            self.model.outbox.setdefault(draft.part % count, []).append(entry)

    def _check_births(self, parent: int, births: Sequence[Submitted]) -> None:
        children = self.bearing.get(parent, [])
        routes = [draft for draft in births if draft.payload.startswith(b"route of ")]
        assert [draft for draft in births if draft not in routes] == children, (parent, children)
        for route in routes:
            assert route.payload == b"route of %d" % parent, route
        assert len(routes) <= 1, routes

    def _note(self, core: Shard, serial: int, image: StoreImage) -> None:
        ticket = core.look(serial)
        if isinstance(ticket, Unread):
            # It came and went between two checkpoints: nobody has to hide it from the store.
            assert serial not in image.heads, ("what was changed is in memory", serial)
            ticket = None
        before = self.tickets.pop(serial, None)
        shadow = None
        if ticket is not None:
            rows = {row.fence: row for row in (() if before is None else before.attempts)}
            rows |= {row.fence: row for row in core.attempt_rows(serial)}
            attempts = tuple(rows[fence] for fence in sorted(rows))
            body, mark = body_of(core, image, serial), bookmark_of(core, image, serial)
            shadow = Shadow(fields_of(ticket), body, attempts, mark)
            self.tickets[serial] = shadow
            name = unique_name_of(ticket)
            if name is not None:
                self.names[serial] = name
        self.versions.setdefault(serial, []).append((core.lsn, shadow))
        name = self.names.get(serial)
        if name is not None:
            row = core.unique_row(name)
            if not isinstance(row, Unread):
                self.rows[name] = row

    def _keep(self, lsn: int, touched: Iterable[int]) -> None:
        entries = self.model.tickets
        for serial in touched:
            if serial in entries:
                self._kept[serial] = _copied(entries[serial])
            else:
                self._kept.pop(serial, None)
        model = _model_of(dict(self._kept), self.model)
        self.points[lsn] = Point(model, dict(self.tickets), dict(self.rows))

    def tell(self, lsn: int) -> None:
        """Something that rests on that LSN was told to the outside."""
        self.told_lsn = max(self.told_lsn, lsn)

    def was_seen(self, serial: int, head: tuple[Any, ...] | None, since: int, until: int) -> bool:
        """Whether a ticket looked so at some LSN of a span, both ends included. Of its progress
        nothing is said: whoever looks is told of this moment's."""
        head = None if head is None else without_progress(head)
        versions = [(0, None), *self.versions.get(serial, [])]
        for at, (lsn, shadow) in enumerate(versions):
            end = versions[at + 1][0] if at + 1 < len(versions) else ALL << 20
            if lsn <= until and end > since and head == (shadow and without_progress(shadow.head)):
                return True
        return False

    # ------------------------------------------------------------------ what holds

    def check_live(self, core: Shard, image: StoreImage, settled_ms: int) -> None:
        """Every invariant of the core over its store; and it is the model and the copies."""
        check(core, image.view)
        assert state_of(core, image) == self.tickets, self._difference(core, image)
        self.passes(settled_ms)
        self._check_rows(core, image)
        self._check_outbox(core, image)
        entries = self.model.tickets
        heads = {serial: _modelled(shadow) for serial, shadow in self.tickets.items()}
        assert heads == {s: _entry_modelled(e) for s, e in entries.items()}
        for serial, entry in entries.items():
            shadow = self.tickets[serial]
            assert shadow.body == entry.body, ("its body", serial, entry)
            assert shadow.bookmark == entry.bookmark, ("what it saved", serial, entry)
        kept = {serial for serial, ticket in image.heads.items() if ticket.has_bookmark}
        assert set(image.bookmarks) == kept, "a bookmark has its row, and no other ticket has one"
        assert core.counters == self.model.counters()
        assert core.done_forgotten == self.model.done_forgotten

    def _check_rows(self, core: Shard, image: StoreImage) -> None:
        self.alias_names |= {alias_name(child): child for child in self.model.aliases}
        for name in {*self.rows, *image.rows} - self.alias_names.keys():
            known = core.unique_row(name)
            row = image.rows.get(name) if isinstance(known, Unread) else known
            expected = self.rows.get(name)
            if not (self._may_be_gone(row) and self._may_be_gone(expected)):
                assert row == expected, ("a name", name, row, expected)

    def _may_be_gone(self, row: UniqueRow | None) -> bool:
        return row is None or (row.serial, row.until_ms) in self.over

    def _check_outbox(self, core: Shard, image: StoreImage) -> None:
        handed = core.outbox.handed
        stored = {
            (to, place): e for (to, place), e in image.outbox.items() if place > handed.get(to, ())
        }
        live = stored | core.outbox.changed()
        kept = {(to, place): e for to, listed in self.model.outbox.items() for place, e in listed}
        assert live == kept, ("the outbox", live, kept)
        assert core.outbox.taken == self.model.taken, "what was taken of others"
        for child, (holder, until_ms) in self.model.aliases.items():
            known = core.unique_row(alias_name(child))
            row = image.rows.get(alias_name(child)) if isinstance(known, Unread) else known
            expected = HELD if until_ms is None else until_ms
            is_there = row is not None and (row.serial, row.until_ms) == (holder, expected)
            assert is_there or (row is None and (holder, until_ms) in self.over), (child, row)

    def _difference(self, core: Shard, image: StoreImage) -> Any:
        live, kept = state_of(core, image), self.tickets
        serials = [s for s in {*live, *kept} if live.get(s) != kept.get(s)]
        return [(s, live.get(s), "and was", kept.get(s), s in core.hot) for s in sorted(serials)]

    def check_recovered(self, core: Shard, image: StoreImage, settled_ms: int) -> None:
        """A shard was recovered: into a state that ever was, with all that was told. It goes on
        from there."""
        lsn = core.lsn
        assert lsn >= self.told_lsn, ("told, and lost", self.told_lsn, lsn)
        assert lsn in self.points, ("a state that never was", lsn, sorted(self.points))
        self.go_back(lsn)
        self.check_live(core, image, settled_ms)

    def go_back(self, lsn: int) -> None:
        """Forgets what came after that LSN."""
        point = self.points[lsn]
        self._kept = dict(point.model.tickets)
        entries = {serial: _copied(entry) for serial, entry in self._kept.items()}
        self.model = _model_of(entries, point.model)
        self.tickets, self.rows = dict(point.tickets), dict(point.rows)
        self.points = {at: kept for at, kept in self.points.items() if at <= lsn}
        for serial, versions in self.versions.items():
            self.versions[serial] = [version for version in versions if version[0] <= lsn]
        self.told_lsn = min(self.told_lsn, lsn)
        self.traffic.go_back(lsn)


class _Expected:
    """What the model says to a command. It changes the model as the command does.

    Where an answer depends on what no model knows (room, a suspect elsewhere, clocks that differ)
    the answer given is taken, if it may be true.
    """

    def __init__(
        self,
        model: Model,
        answers: list[Answer | Refusal],
        now_ms: int,
        settled_ms: int,
        has_room: bool,
        gone: set[tuple[int, int | None]],
    ) -> None:
        self.model = model
        self.gone = gone
        self.answers = answers
        self.now_ms = now_ms
        self.settled_ms = settled_ms
        self.has_room = has_room

    def codes(self, command: Command) -> list[str]:
        model, now_ms, settled_ms = self.model, self.now_ms, self.settled_ms
        match command:
            case Submit(drafts, modes):
                modes = modes or [0] * len(drafts)
                each = zip(drafts, modes, self.answers, strict=True)
                return [self._submit(*submitted) for submitted in each]
            case Cancel(serial, reason):
                return [model.cancel(serial, reason, now_ms)]
            case Bookmark(serial, fence, value, progress):
                if [answer.code for answer in self.answers] == ["full"]:
                    assert not self.has_room
                    return ["full"]
                return [model.bookmark(serial, fence, value, progress)]
            case CancelMany(serials, reason):
                if {answer.code for answer in self.answers} == {"full"}:
                    assert not self.has_room
                    return ["full"] * len(serials)
                assert self.has_room
                return [model.cancel(serial, reason, now_ms) for serial in serials]
            case Reschedule(serial, due_ms):
                return [model.reschedule(serial, due_ms)]
            case Revive(serials, due_ms, keep, payload, accept, dues_ms):
                dues_ms = dues_ms or [due_ms] * len(serials)
                return [
                    self._revive(answer, serial, due, accept, keep, payload)
                    for answer, serial, due in zip(self.answers, serials, dues_ms, strict=True)
                ]
            case Drop(serials):
                return [model.drop(serial) for serial in serials]
            case Resolve(serial, result):
                return [model.resolve(serial, result, now_ms)]
            case Expire(serials):
                return [model.expire(serial, now_ms, settled_ms) for serial in serials]
            case Forget(task, state, serials, before_ms):
                return [self._forget(task, state, serial, before_ms) for serial in serials]
            case Start(items):
                return [self._start(*each) for each in zip(items, self.answers, strict=True)]
            case StartAlike(serials, most, on_crash):
                return self.codes(Start([StartItem(s, most, None, on_crash) for s in serials]))
            case Settle(outcomes):
                return [model.settle(outcome, now_ms, settled_ms) for outcome in outcomes]
            case Deliver(sender, entries):
                return self._deliver(sender, entries)
            case Hand(receiver, place):
                code = model.hand(receiver, place)
                return [] if code is None else [code]
            case SettleLost(items):
                return [self._lose(item) for item in items]
            case _:
                raise AssertionError(command)

    def _submit(self, draft: Submitted, mode: int, answer: Answer | Refusal) -> str:
        if answer.code == "full":
            assert not self.has_room
            return "full"
        # Without room nobody is replaced: the holder is answered.
        mode = mode if self.has_room or mode != CONFLICT_REPLACE else CONFLICT_RETURN
        if answer.code == "created":
            self.model.let_go(draft, self.gone)
        code = self.model.submit(draft, mode, self.now_ms, self.settled_ms)
        assert self.has_room or code != "created", "made without room"
        return code

    def _deliver(self, sender: int, entries: Sequence[tuple[Place, Submitted]]) -> list[str]:
        codes: list[str] = []
        for place, draft in entries:
            is_new = place > self.model.taken.get(sender, NO_PLACE)
            if is_new and self.answers[len(codes)].code == "created":
                self.model.let_go(draft, self.gone)
            code = self.model.deliver(sender, place, draft, self.now_ms, self.settled_ms)
            codes += [] if code is None else [code]
        return codes

    def _revive(self, answer: Answer | Refusal, serial: int, due_ms: int, *given: Any) -> str:
        entry = self.model.tickets.get(serial)
        if entry is not None and answer.code == "revived":
            self.model.let_go(entry.draft, {taken for taken in self.gone if taken[0] != serial})
        accept, keep, payload = given
        return self.model.revive(serial, due_ms, accept, keep, self.settled_ms, payload)

    def _forget(self, task: str, state: int, serial: int, before_ms: int | None) -> str:
        entry = self.model.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state in (PENDING, RUNNING):
            return "not_ended"
        if (entry.draft.task, entry.state) != (task, state):
            return "other"
        if before_ms is not None and entry.finished_ms >= before_ms:
            return "kept"
        self.model.forget(serial)
        return "forgotten"

    def _start(self, item: StartItem, answer: Answer | Refusal) -> str:
        entry, code = self.model.tickets.get(item.serial), answer.code
        if entry is None:
            return "gone"
        if entry.state != PENDING:
            return "not_pending"
        if entry.due_ms > self.now_ms:
            return "not_due"
        if code in ("suspect", "clock", "full", "key_busy", "outlived"):
            assert code != "suspect" or entry.is_suspect
            assert code != "outlived" or item.is_outlived
            assert code != "key_busy" or self._is_key_busy(entry)
            return code
        assert not self._is_key_busy(entry) or code != "started", ("one at a time", entry)
        return self.model.start(item.serial, item.on_crash, self.now_ms, self.settled_ms)

    def _is_key_busy(self, entry: Entry) -> bool:
        key = entry.draft.key
        others = self.model.tickets.values()
        return key is not None and any(e.draft.key == key and e.state == RUNNING for e in others)

    def _lose(self, item: Any) -> str:
        entry = self.model.tickets.get(item.serial)
        if entry is None or entry.state != RUNNING or entry.fence != item.fence:
            return "refused"
        assert not item.is_alone or entry.is_suspect, ("blamed, and no suspect", item, entry)
        self.model.lose(item, self.now_ms, self.settled_ms)
        return "settled"


def _touched(core: Shard, record: Record) -> list[int]:
    serial = getattr(record, "serial", None)
    touched = list(core.names(record)[0]) + ([] if serial is None else [serial])
    if isinstance(record, Delivered):
        return touched if record.draft is None else [record.draft.serial]
    return touched + [draft.serial for draft in getattr(record, "born", None) or ()]


def births_of(command: Command) -> dict[int, list[Submitted]]:
    """The children of each attempt that a command settles."""
    if not isinstance(command, Settle):
        return {}
    return {o.serial: o.born for o in reversed(command.outcomes) if o.born}


_PROGRESS = Ticket.__struct_fields__.index("progress")
_places_modelled = itemgetter(*(Ticket.__struct_fields__.index(name) for name in HEADS_FIELDS))
_entry_modelled = attrgetter(*HEADS_FIELDS)


def _modelled(shadow: Shadow) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _places_modelled(shadow.head)
    return found


def _model_of(entries: dict[int, Entry], like: Model) -> Model:
    model = Model()
    model.tickets, model.names = entries, dict(like.names)
    model.outbox = {to: list(listed) for to, listed in like.outbox.items()}
    model.taken, model.aliases = dict(like.taken), dict(like.aliases)
    model.done_forgotten = like.done_forgotten
    return model


def _copied(entry: Entry) -> Entry:
    fresh = Entry.__new__(Entry)
    fresh.__dict__.update(entry.__dict__)
    return fresh


assert DEAD == 3
