"""Submits: calls become drafts with serials, dealt to their shards; their answers become handles.

One call goes the short way: its draft, its ask and its waiter, and nothing else is made. Many go in
chunks, one command a shard: a small one is all of one shard.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from parkade.asking import Request, is_on_loop
from parkade.asks import Ask
from parkade.calls import Call
from parkade.draft_sizes import HELD_BYTES, PLAIN_BYTES, cut, draft_bytes
from parkade.errors import BlockingInEventLoop, DuplicateTicket, StorageFull
from parkade.handles import Handles
from parkade.limits import SUBMIT_BYTES_MAX
from parkade.loop_submits import LoopSubmits
from parkade.shard.commands import AllCreated, Answer, Refusal, Submit
from parkade.store.record import Submitted
from parkade.ticket import Ticket
from parkade.waiters import LoopWaiter, ThreadWaiter

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["Submitting", "chunks", "pieces_of"]

TOGETHER_MAX = 2_000  # of one bulk, in one shard: more overlap in several
PIECE_BYTES = 100  # what a plain draft of it writes beside its payload, rather more


class Submitting:
    """Any thread."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        runtime = desk.runtime
        self._placing = runtime.placing
        self._clock = runtime.clock
        self._payload_bytes_max = runtime.options.max_payload
        self._inbox = runtime.host.inbox
        self._drive = runtime.drive
        self._caller_frames = runtime.host.caller_frames
        self._loop_submits = LoopSubmits(
            self._inbox,
            self._drive,
            runtime.shard_count,
            drafts_of=lambda calls: self._drafts(calls, [len(calls)]),
            created=self._created,
            outcome_of=self._outcome,
        )
        self._shards = runtime.host.shards
        self._shard_count = runtime.shard_count

    # ------------------------------------------------------------------------------------- one

    def submit(self, call: Call[Any]) -> Ticket[Any]:
        """Blocks until it is durable."""
        inbox = self._inbox
        if inbox.valve is not None:
            return self._desk.ask(self._one(call))
        if is_on_loop():
            raise BlockingInEventLoop(f"{call.task}.submit", instead=f"{call.task}.asubmit")
        draft = self._draft(call)
        if self._caller_frames.write(self._shards[draft.part % self._shard_count], draft):
            return self._created(call, draft)
        self._caller_frames.check(f"{call.task}.submit")  # now it waits for the core thread
        size = draft_bytes(draft)
        waiter = ThreadWaiter()
        inbox.enter(size)
        self._put(call, draft, size, waiter)
        try:
            self._drive.wait_for(waiter, None)
        except BaseException:
            waiter.is_abandoned = True
            raise
        return self._answered(call, draft, waiter)

    def asubmit(self, call: Call[Any]) -> Awaitable[Ticket[Any]]:
        """The same, to be awaited at once."""
        if self._inbox.valve is not None:
            return self._desk.aask(self._one(call))
        if call.unique is None:
            return self._loop_submits.add(call)
        return self._asubmit_named(call)

    async def _asubmit_named(self, call: Call[Any]) -> Ticket[Any]:
        inbox = self._inbox
        loop = asyncio.get_running_loop()
        self._loop_submits.send(loop)  # before this one, as they were submitted
        draft = self._draft(call)
        size = draft_bytes(draft)
        waiter = LoopWaiter(loop)
        if not inbox.enter_now(size):
            await inbox.aenter(size)
        self._put(call, draft, size, waiter)
        self._drive.stir()
        try:
            await waiter.future
        except BaseException:
            waiter.is_abandoned = True
            raise
        return self._answered(call, draft, waiter)

    def _draft(self, call: Call[Any]) -> Submitted:
        return self._placing.draft_of(
            call, self._clock.now_ms(), self._payload_bytes_max, self._caller_frames.crowd_part
        )

    def _drafts(self, calls: Sequence[Call[Any]], pieces: Sequence[int]) -> list[Submitted]:
        return self._placing.drafts(
            calls, self._clock.now_ms(), payload_bytes_max=self._payload_bytes_max, pieces=pieces
        )

    def _put(
        self, call: Call[Any], draft: Submitted, size: int, waiter: ThreadWaiter | LoopWaiter
    ) -> None:
        conflict = call.options.on_conflict
        command = Submit([draft], [conflict] if conflict else None)
        ask = Ask(command, waiter=waiter, size=size, door_bytes=size)
        self._inbox.put([(draft.part % self._shard_count, ask)])

    def _answered(
        self, call: Call[Any], draft: Submitted, waiter: ThreadWaiter | LoopWaiter
    ) -> Ticket[Any]:
        if waiter.error is not None:
            raise waiter.error
        answers = waiter.values[0]
        if type(answers) is AllCreated:
            return self._created(call, draft)
        return self._ticket(draft, answers[0], call.bound)

    def _created(self, call: Call[Any], draft: Submitted) -> Ticket[Any]:
        identity = (draft.serial, draft.part)
        return Ticket(self._desk, identity, draft.task, created=True, bound=call.bound)

    def _one(self, call: Call[Any]) -> Request[Ticket[Any]]:
        """Where it is counted how many are ready, the way that every question goes."""
        draft, conflict = self._draft(call), call.options.on_conflict
        return Request(
            f"{call.task}.submit",
            f"{call.task}.asubmit",
            [(draft.part % self._shard_count, Submit([draft], [conflict] if conflict else None))],
            lambda answers: self._ticket(draft, answers[0][0], call.bound),
            sizes=(draft_bytes(draft),),
        )

    # ------------------------------------------------------------------------------------ many

    def many(self, calls: Sequence[Call[Any]], accepted: Handles) -> Request[Exception | None]:
        """A chunk: one command a shard, and no more shards than it fills. Its tickets are added to
        `accepted`, in order; the answer is why one has none. A shard that fails costs the others'
        tickets nothing."""
        drafts = self._drafts(calls, pieces_of(calls))
        hands = list(self._dealt(drafts))
        conflicts = [call.options.on_conflict for call in calls]
        asks = [(shard, Submit(hand)) for shard, hand, _ in hands]
        if any(conflicts):
            first = drafts[0].serial
            asks = [
                (shard, Submit(hand, [conflicts[draft.serial - first] for draft in hand]))
                for shard, hand, _ in hands
            ]

        def finish(answers: list[Any]) -> Exception | None:
            if all(type(answered) is AllCreated for answered in answers):
                accepted.add_created(drafts, calls)
                return None
            outcomes = self._outcomes(calls, [hand for _, hand, _ in hands], answers)
            accepted.add([one for one in outcomes if isinstance(one, Ticket)])
            return next((one for one in outcomes if isinstance(one, Exception)), None)

        call, instead = "engine.submit_many", "engine.asubmit_many"
        return Request(
            call,
            instead,
            asks,
            finish,
            sizes=[size for _, _, size in hands],
            door_sizes=[size + HELD_BYTES * len(hand) for _, hand, size in hands],
            takes_errors=True,
        )

    def _outcomes(
        self,
        calls: Sequence[Call[Any]],
        hands: Sequence[Sequence[Submitted]],
        answers: Sequence[Any],
    ) -> list[Ticket[Any] | Exception]:
        """In the order of the calls, whose drafts have serials in a row."""
        outcomes: list[Any] = [None] * len(calls)
        first = min(hand[0].serial for hand in hands)
        for hand, answered in zip(hands, answers, strict=True):
            if isinstance(answered, Exception):
                answered = [answered] * len(hand)
            for draft, answer in zip(hand, answered, strict=True):
                place = draft.serial - first
                outcomes[place] = self._outcome(draft, answer, calls[place].bound)
        return outcomes

    def _dealt(self, drafts: Sequence[Submitted]) -> Iterator[tuple[int, list[Submitted], int]]:
        """(shard, drafts, bytes written) of each command, the latter about and rather more than
        less; one has a bounded size."""
        count = self._shard_count
        hands: list[list[Submitted]] = [[] for _ in range(count)]
        for draft in drafts:
            hands[draft.part % count].append(draft)
        plain_bytes = PLAIN_BYTES + max(
            [len(task.encode()) for task in {draft.task for draft in drafts}]
        )
        for shard, hand in enumerate(hands):
            total = sum([len(draft.payload) for draft in hand]) + plain_bytes * len(hand)
            is_plain = [
                draft.options is None and draft.key is None and draft.unique is None
                for draft in hand
            ]
            if 0 < total <= SUBMIT_BYTES_MAX and all(is_plain):
                yield shard, hand, total
                continue
            sizes = [
                len(draft.payload) + plain_bytes if is_short else draft_bytes(draft)
                for draft, is_short in zip(hand, is_plain, strict=True)
            ]
            for begin, end in cut(sizes):
                yield shard, hand[begin:end], sum(sizes[begin:end])

    # --------------------------------------------------------------------------------- answers

    def _ticket(self, draft: Submitted, answer: Answer | Refusal, bound: Any) -> Ticket[Any]:
        outcome = self._outcome(draft, answer, bound)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _outcome(
        self, draft: Submitted, answer: Answer | Refusal | Exception, bound: Any
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
            return StorageFull(shard=draft.part % self._shard_count)
        assert answer.code == "duplicate" and draft.unique is not None, answer
        holder: Ticket[Any] = Ticket(
            self._desk, (answer.serial, answer.part), draft.task, bound=bound
        )
        standing = "not ended yet" if answer.until_ms < 0 else self._desk.until(answer.until_ms)
        return DuplicateTicket(holder, unique=draft.unique.name, standing=standing)


def pieces_of(calls: Sequence[Call[Any]]) -> list[int]:
    """How many of calls in a row are a command, and a frame, of one shard: about as many each."""
    least = -(-len(calls) // TOGETHER_MAX)
    size = sum([len(call.payload) for call in calls]) + PIECE_BYTES * len(calls)
    count = min(max(least, -(-size // SUBMIT_BYTES_MAX)), len(calls))
    each, more = divmod(len(calls), count)
    return [each + 1] * more + [each] * (count - more)


def chunks(calls: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Lists of at most `size`, as they come."""
    rest = iter(calls)
    while chunk := list(islice(rest, size)):
        yield chunk
