"""Keeping and forgetting: ended tickets leave a while after their end, or when there are too many.

By age on the settled clock, and by number; the oldest first, as table `ended` has them. A round
looks at every task and state in turn, remembers when the first of each ended, and goes on as long
as there is more to forget, a slice at a time. So it keeps pace at full load, and works off a long
backlog without keeping anybody waiting (docs/semantics.md, Forgetting).
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from parkade import limits
from parkade.asks import Ask
from parkade.index_keys import task_digest
from parkade.keeping import COUNTED, share_of
from parkade.shard.commands import Forget
from parkade.shard.states import DEAD
from parkade.store.ended import Ended, EndedAt

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Retention"]

_Kind = tuple[str, int]
"""(task, state)."""

ALWAYS_MS = 1 << 62
FORGOTTEN_BYTES = 10  # what a serial takes in a record
RECORD_BYTES = 300


class _Front(NamedTuple):
    """When the first ticket ended that the store has of a kind; None: it had none at that commit.
    It is looked at anew after a while: a clock that was set back brings older ones."""

    first_ms: int | None
    commit: int
    until_mono_ms: int


class _Forgotten(NamedTuple):
    """So many tickets that the store still has."""

    lsn: int
    tickets: int


class Retention:
    """Of one shard. Reads and forgets one slice after the other."""

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self._keeping = shard.host.keeping
        self._tasks_keep = self._keeping.tasks_keep(shard.store.memo.keeps_ms)
        self._round: list[_Kind] | None = None  # kinds to be looked at for their age
        self._fronts: dict[_Kind, _Front] = {}
        self._places: dict[_Kind, tuple[int, EndedAt]] = {}  # at a commit: where to go on
        self._forgotten: deque[_Forgotten] = deque()
        self._spent: dict[bytes, int] = {}  # blobs of which nothing is left from an LSN on
        self._fronts_after: bytes | None = b""  # spent blobs that nobody noted are sought from here
        self._seek_ms = 0
        self._opened_lsn = shard.core.lsn
        self._is_busy = False
        self._next_ms = self._count_ms = shard.host.mono_ms
        self._rested_lsn = -1  # up to here nothing is too much by number
        self._is_over = False  # the number was, at the last look
        self._has_failed = False  # to forget some of them

    @property
    def pause_ms(self) -> int:
        """Between two rounds: fine enough for how long things are kept."""
        ages_ms = self._keeping.ages_ms(self._tasks_keep)
        pause_ms = min((age_ms // 10 for age_ms in ages_ms), default=ALWAYS_MS)
        if self._keeping.done_max is not None:
            pause_ms = min(pause_ms, limits.RETENTION_REST_PAUSE_MS)
        return min(max(pause_ms, limits.RETENTION_PAUSE_MS_MIN), limits.RETENTION_PAUSE_MS_MAX)

    def next_ms(self) -> int | None:
        """When, on the monotonic clock, the next look is due; None: an answer is awaited."""
        if self._is_busy or (self._forgotten and self._is_ahead()):
            return None
        if self._keeping.done_max is None or self._shard.core.lsn == self._rested_lsn:
            return self._next_ms  # nothing has ended here since
        return min(self._next_ms, self._count_ms)

    def count_soon(self) -> None:
        """Others have so many that this shard may have too many."""
        self._next_ms = min(self._next_ms, self._count_ms)
        self._shard.dues.are_over_by(self._next_ms)

    def spent_by(self, lsn: int) -> list[bytes]:
        """Keys of blobs of what has ended of which nothing is left at an LSN."""
        return [key for key, since_lsn in self._spent.items() if since_lsn <= lsn]

    def freed(self, spent: Iterable[bytes]) -> None:
        """A checkpoint that frees these blobs is done."""
        for key in spent:
            self._spent.pop(key, None)

    @property
    def has_spent(self) -> bool:
        """Whether a checkpoint would free something of that kind."""
        return bool(self._spent)

    def step(self) -> None:
        """Looks for what may go, if it is time."""
        shard = self._shard
        next_ms = self.next_ms()
        if self._is_busy or (next_ms is not None and shard.host.mono_ms < next_ms):
            return
        if self._is_ahead():
            checkpointing = shard.checkpointing
            checkpointing.is_wanted = checkpointing.is_wanted or not checkpointing.is_busy
            return
        if self._fronts_after is None and shard.host.mono_ms >= self._seek_ms:
            self._fronts_after = b""
        after = self._fronts_after
        if after is not None and shard.core.completed_lsn >= self._opened_lsn:
            self._seek_spent(after)
        elif not (self._look_by_age() or self._look_by_number()):
            self._rest()

    def _rest(self) -> None:
        self._round = None
        mono_ms = self._shard.host.mono_ms
        self._next_ms = mono_ms + self.pause_ms
        self._count_ms = mono_ms + limits.RETENTION_COUNT_PAUSE_MS
        is_done = not (self._is_over or self._has_failed)
        self._rested_lsn = self._shard.core.lsn if is_done else -1
        self._has_failed = False

    # ------------------------------------------------------------------ bounds

    def _is_ahead(self) -> bool:
        """Whether so much is forgotten that no checkpoint has that the next must come first."""
        self._drop_committed()
        if not self._forgotten:
            return False
        count = sum(part.tickets for part in self._forgotten)
        shards = max(len(self._shard.host.open_shards()), 1)
        return count >= max(limits.FORGOTTEN_UNCOMMITTED_MAX // shards, limits.FORGET_MAX)

    def _drop_committed(self) -> None:
        completed_lsn = self._shard.core.completed_lsn
        while self._forgotten and self._forgotten[0].lsn <= completed_lsn:
            self._forgotten.popleft()

    # ------------------------------------------------------------------ what is next

    def _look_by_age(self) -> bool:
        """Looks at the next kind whose oldest may be old enough; False: none is left."""
        keeping = self._keeping
        if self._round is None:
            self._tasks_keep = keeping.tasks_keep(self._shard.store.memo.keeps_ms)
            counters = self._shard.core.counters
            self._round = [kind for kind in counters if kind[1] == DEAD or kind[1] in COUNTED]
            self._fronts = {
                kind: self._fronts[kind] for kind in self._round if kind in self._fronts
            }
        while self._round:
            kind = self._round.pop()
            age_ms = keeping.age_ms(*kind, self._tasks_keep)
            if age_ms is None:
                continue
            before_ms = self._shard.host.settled_ms - age_ms
            front = self._front(kind)
            if front is None or (front.first_ms is not None and front.first_ms < before_ms):
                self._read(kind, before_ms, limits.FORGET_MAX, is_by_age=True)
                return True
        return False

    def _look_by_number(self) -> bool:
        """Looks at the kind whose first ended before all others, if there are too many; False: it
        need not, or there is nothing in the store yet."""
        excess = self._excess()
        self._is_over = excess > 0
        if not self._is_over:
            return False
        firsts: list[tuple[int, _Kind]] = []
        for kind in self._shard.core.counters:
            if not self._keeping.is_counted(*kind, self._tasks_keep):
                continue
            front = self._front(kind)
            if front is None:
                self._read(kind, 0, 1, is_by_age=False)
                return True
            if front.first_ms is not None:
                firsts.append((front.first_ms, kind))
        if not firsts:
            return False
        firsts.sort()
        first_ms, kind = firsts[0]
        second_ms = firsts[1][0] if len(firsts) > 1 else ALWAYS_MS
        before_ms = max(second_ms, first_ms + limits.FORGET_SPAN_MS)
        self._read(kind, before_ms, min(excess, limits.FORGET_MAX), is_by_age=False)
        return True

    def _excess(self) -> int:
        """How many more the shard has than its share of what is kept by number."""
        most = self._keeping.done_max
        if most is None:
            return 0
        shards = self._shard.host.open_shards()
        counts = [self._count(shard) for shard in shards]
        if sum(counts) > most:
            for shard, count in zip(shards, counts, strict=True):
                if shard is not self._shard and count > most // len(shards):
                    shard.retention.count_soon()
        place = next(n for n, shard in enumerate(shards) if shard is self._shard)
        return counts[place] - share_of(place, counts, most)

    def _count(self, shard: "ShardHost") -> int:
        is_counted, tasks_keep = self._keeping.is_counted, self._tasks_keep
        return sum(
            count for kind, count in shard.core.counters.items() if is_counted(*kind, tasks_keep)
        )

    def _front(self, kind: _Kind) -> _Front | None:
        """When the first of a kind ended, as far as that is known."""
        front = self._fronts.get(kind)
        if front is None or front.until_mono_ms <= self._shard.host.mono_ms:
            return None
        if front.first_ms is None and front.commit != self._shard.core.completed_commit:
            return None
        return front

    # ------------------------------------------------------------------ reading and forgetting

    def _read(self, kind: _Kind, before_ms: int, limit: int, *, is_by_age: bool) -> None:
        shard = self._shard
        task, state = kind
        commit = shard.core.completed_commit
        place = self._places.get(kind)
        # What a completed commit has added may lie before the place.
        after = place[1] if place is not None and place[0] == commit else None
        digest, reader = task_digest(task), shard.reader
        self._is_busy = True
        shard.read(
            lambda: reader.ended(state, digest, before_ms, limit, after),
            lambda got: self._found(kind, before_ms, commit, got, is_by_age=is_by_age),
        )

    def _found(
        self, kind: _Kind, before_ms: int, commit: int, got: Ended, *, is_by_age: bool
    ) -> None:
        core, quarantined = self._shard.core, self._shard.quarantined
        if got.after is not None:
            self._places[kind] = commit, got.after
            if is_by_age and self._round is not None:
                # Behind the others: of what ends as fast as it is forgotten there is always more.
                self._round.insert(0, kind)
        else:
            self._places.pop(kind, None)
            until_ms = self._shard.host.mono_ms + limits.RETENTION_PAUSE_MS_MAX
            self._fronts[kind] = _Front(got.first_ms, commit, until_ms)
        serials = [
            serial
            for serial in got.serials
            if core.look(serial) is not None and serial not in quarantined
        ]
        if serials:
            self._forget(kind, before_ms, serials, got.spent)
            return
        self._is_busy = False
        self._note_spent(got.spent)

    def _forget(self, kind: _Kind, before_ms: int, serials: list[int], spent: list[bytes]) -> None:
        core = self._shard.core
        count_before = len(self._shard.quarantined)

        def then(answers: Any, error: BaseException | None) -> None:
            self._is_busy = False
            if answers is not None:
                self._forgotten.append(_Forgotten(core.lsn, len(serials)))
                self._note_spent(spent)
                return
            self._has_failed = True
            self._places.pop(kind, None)
            self._fronts.pop(kind, None)
            if len(self._shard.quarantined) == count_before:
                self._rest()  # it is not that a row of one of them is damaged: wait

        size = RECORD_BYTES + FORGOTTEN_BYTES * len(serials)
        self._shard.put(Ask(Forget(*kind, serials, before_ms), size=size, then=then))

    def _note_spent(self, keys: Iterable[bytes]) -> None:
        self._spent |= dict.fromkeys(keys, self._shard.core.lsn)

    def _seek_spent(self, after: bytes) -> None:
        """What was noted as spent in an earlier life, and was not freed, is found again, once a
        checkpoint has what that life had forgotten; and, now and then, what is left of dead letters
        that somebody revived or dropped, where they are kept for ever."""
        reader = self._shard.reader
        self._is_busy = True

        def found(got: tuple[list[bytes], bytes | None]) -> None:
            self._is_busy = False
            spent, self._fronts_after = got
            self._seek_ms = self._shard.host.mono_ms + limits.SPENT_SEEK_PAUSE_MS
            self._note_spent(spent)

        self._shard.read(lambda: reader.spent_fronts(after, limits.SPENT_WALK_BLOBS), found)
