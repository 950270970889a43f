"""What a command sees: memory first, then what was read for it; and what it lacks."""

from parkade.shard.commands import Answer, Loaded, Need, Refusal, UniqueRow, Verdict
from parkade.shard.memory import UNREAD, Memory, Unread
from parkade.shard.ticket import Ticket
from parkade.shard.unique import alias_name
from parkade.store.record import Record

__all__ = ["View"]


class View:
    """Memory as one command sees it, with the verdict that grows. Changes nothing of memory.

    A read that a completion has overtaken is as good as none: what it held is needed again. So is
    what a read held that does not suffice, since the next one comes in its place.
    """

    __slots__ = (
        "answers",
        "is_lacking",
        "loaded",
        "memory",
        "needs_names",
        "needs_serials",
        "records",
    )

    def __init__(self, memory: Memory, loaded: Loaded | None) -> None:
        self.memory = memory
        fresh = loaded is not None and memory.is_fresh(loaded.snapshot_commit)
        self.loaded = loaded if fresh else None
        self.records: list[Record] = []
        self.answers: list[Answer | Refusal] = []
        self.needs_serials: dict[int, None] = {}
        self.needs_names: dict[bytes, None] = {}
        self.is_lacking = False

    def ticket(self, serial: int) -> Ticket | Unread | None:
        """The ticket; None when there is none; UNREAD, noted as a need, when that is not known."""
        ticket = self.memory.look(serial)
        if ticket is not UNREAD:
            return ticket
        self.needs_serials[serial] = None
        loaded = self.loaded
        if loaded is not None and serial in loaded.tickets:
            parked = loaded.tickets[serial]
            return None if parked is None else parked.ticket
        self.is_lacking = True
        return UNREAD

    def row(self, name: bytes) -> UniqueRow | Unread | None:
        """The unique row of that name; UNREAD, noted as a need, when it is not known."""
        row = self.memory.row(name)
        if row is not UNREAD:
            return row
        self.needs_names[name] = None
        loaded = self.loaded
        if loaded is not None and name in loaded.uniques:
            return loaded.uniques[name]
        self.is_lacking = True
        return UNREAD

    def speaks_for(self, serial: int) -> Ticket | Unread | None:
        """The ticket that an id stands for: its own, or that whose unique kept it from being
        made."""
        ticket = self.ticket(serial)
        if ticket is not None:
            return ticket
        row = self.row(alias_name(serial))
        if row is None or row is UNREAD:
            return row
        return self.ticket(row.serial)

    def accept(self, record: Record, answer: Answer) -> None:
        self.records.append(record)
        self.answers.append(answer)

    def refuse(self, code: str, serial: int) -> None:
        self.answers.append(Refusal(code, serial))

    def verdict(self) -> Verdict:
        """What was decided; or, when anything was lacking, only that."""
        if self.is_lacking:
            return Verdict([], [], Need(list(self.needs_serials), list(self.needs_names)))
        return Verdict(self.records, self.answers)
