"""Submits: prepared calls become drafts with serials, dealt to their shards in chunks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from parkade.asking import Request
from parkade.calls import Prepared
from parkade.checks import NAME_BYTES_MAX
from parkade.errors import DuplicateTicket, StorageFull
from parkade.limits import COMMAND_BYTES_MAX
from parkade.shard.commands import Answer, Refusal, Submit
from parkade.store.record import Submitted
from parkade.ticket import Ticket

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["Submitting", "draft_bytes"]

DRAFT_BYTES = 300  # what a plain draft holds beside its payload, about
_encode = msgspec.msgpack.Encoder().encode


class Submitting:
    """Makes requests of prepared calls. Any thread."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        runtime = desk.runtime
        self._placing = runtime.placing
        self._shard_count = runtime.shard_count

    def one(self, prepared: Prepared, bound: Any) -> Request[Ticket[Any]]:
        """A single submit: the fast way."""
        serial = self._placing.serials(1, prepared.at_ms)
        draft = self._placing.draft(prepared, serial)
        conflict = prepared.on_conflict
        command = Submit([draft], [conflict] if conflict else None)
        shard = draft.part % self._shard_count

        def finish(answers: list[Any]) -> Ticket[Any]:
            return self._ticket(shard, draft, answers[0][0], bound)

        return Request(
            f"{prepared.task}.submit",
            f"{prepared.task}.asubmit",
            [(shard, command)],
            finish,
            sizes=(draft_bytes(draft),),
        )

    def many(
        self, prepared: Sequence[Prepared], bounds: Sequence[Any]
    ) -> Request[list[Ticket[Any] | Exception]]:
        """A chunk: one command a shard; for each, in order, its ticket or why it has none. A shard
        that fails costs the others' tickets nothing."""
        first = self._placing.serials(len(prepared), prepared[0].at_ms)
        drafts = [self._placing.draft(one, first + n) for n, one in enumerate(prepared)]
        asks: list[tuple[int, Submit]] = []
        places: list[list[int]] = []
        sizes: list[int] = []
        for shard, listed, size in self._dealt(drafts):
            conflicts = [prepared[place].on_conflict for place in listed]
            drafted = [drafts[place] for place in listed]
            asks.append((shard, Submit(drafted, conflicts if any(conflicts) else None)))
            places.append(listed)
            sizes.append(size)

        def finish(answers: list[Any]) -> list[Ticket[Any] | Exception]:
            tickets: list[Any] = [None] * len(drafts)
            for (shard, _), listed, answered in zip(asks, places, answers, strict=True):
                if isinstance(answered, Exception):
                    answered = [answered] * len(listed)
                for place, answer in zip(listed, answered, strict=True):
                    tickets[place] = self._outcome(shard, drafts[place], answer, bounds[place])
            return tickets

        call, instead = "engine.submit_many", "engine.asubmit_many"
        return Request(call, instead, asks, finish, sizes=sizes, takes_errors=True)

    def _dealt(self, drafts: Sequence[Submitted]) -> Iterator[tuple[int, list[int], int]]:
        """(shard, places in `drafts`, bytes) of each command; one has a bounded size."""
        places: list[list[int]] = [[] for _ in range(self._shard_count)]
        sizes = [0] * self._shard_count
        for place, draft in enumerate(drafts):
            shard = draft.part % self._shard_count
            size = draft_bytes(draft)
            if places[shard] and sizes[shard] + size > COMMAND_BYTES_MAX:
                yield shard, places[shard], sizes[shard]
                places[shard], sizes[shard] = [], 0
            places[shard].append(place)
            sizes[shard] += size
        for shard, listed in enumerate(places):
            if listed:
                yield shard, listed, sizes[shard]

    def _ticket(
        self, shard: int, draft: Submitted, answer: Answer | Refusal, bound: Any
    ) -> Ticket[Any]:
        outcome = self._outcome(shard, draft, answer, bound)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _outcome(
        self, shard: int, draft: Submitted, answer: Answer | Refusal | Exception, bound: Any
    ) -> "Ticket[Any] | Exception":
        if isinstance(answer, Exception):
            return answer
        if isinstance(answer, Answer):
            place = (answer.serial, answer.part)
            is_created = answer.code == "created"
            return Ticket(
                self._desk,
                place,
                draft.task,
                created=is_created,
                is_holder=not is_created,
                bound=bound,
            )
        if answer.code == "full":
            return StorageFull(shard=shard)
        assert answer.code == "duplicate" and draft.unique is not None, answer
        holder: Ticket[Any] = Ticket(
            self._desk, (answer.serial, answer.part), draft.task, bound=bound
        )
        standing = "not ended yet" if answer.until_ms < 0 else self._desk.until(answer.until_ms)
        return DuplicateTicket(holder, unique=draft.unique.name, standing=standing)


def draft_bytes(draft: Submitted) -> int:
    """What a draft holds at the door and writes, about, and rather more than less."""
    size = len(draft.payload) + DRAFT_BYTES
    if draft.options is not None:
        size += len(_encode(draft.options))
    if draft.key is not None:
        size += NAME_BYTES_MAX
    return size if draft.unique is None else size + NAME_BYTES_MAX


def chunks(calls: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Lists of at most `size`, as they come."""
    chunk: list[Any] = []
    for call in calls:
        chunk.append(call)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
