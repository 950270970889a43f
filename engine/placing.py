"""Where tickets belong: the serial and the part of what becomes one."""

from collections.abc import Callable, Sequence
from itertools import cycle, repeat
from typing import Any, Protocol

from parkade.calls import Call, Prepared
from parkade.durations import TIME_MS_MAX
from parkade.options import with_indexed
from parkade.serials import Serials
from parkade.shard.ticket import part_of_key, part_of_serial, part_of_unique, parts_of_serials
from parkade.store.record import Submitted

__all__ = ["NEVER_MS", "Placing"]

PART_MAX = 0xFFFF
NEVER_MS = 1 << 52  # how long what is kept for ever is kept


class Served(Protocol):
    """A shard, as far as it matters here. `is_refused`: it serves nobody."""

    is_refused: bool


class Placing:
    """Any thread. `keep_ms`: how long a unique of that task outlives its ticket's end (None: for
    ever); `index_tags`: the tags that tickets of today are found by; `opens`: how often the
    directory was opened before, so that a process for each bulk does not fill the same shard."""

    def __init__(
        self,
        serials: Serials,
        shards: Sequence[Served],
        keep_ms: Callable[[str], int | None],
        index_tags: Sequence[str],
        opens: int,
    ) -> None:
        self._serials = serials
        self._shards = shards
        self._shard_count = len(shards)
        self._keep_ms = keep_ms
        self._index_tags = index_tags
        self._first_shard = opens % len(shards)
        self._given = [0] * len(shards)  # from that one on; roughly, if threads meet here

    def draft(self, prepared: Prepared, serial: int) -> Submitted:
        """What becomes a ticket under this serial, with its part."""
        if prepared.key is not None:
            part = part_of_key(prepared.key)
        elif prepared.unique is not None:
            part = part_of_unique(prepared.task, prepared.unique)
        else:
            part = self._healthy(part_of_serial(serial))
        return self._made(prepared, serial, part)

    def drafts(
        self,
        calls: Sequence[Call[Any]],
        now_ms: int,
        *,
        payload_bytes_max: int,
        pieces: Sequence[int],
    ) -> list[Submitted]:
        """What becomes of calls that are submitted now, under serials in a row. Of `pieces`, so
        many calls each, those that follow each other belong to one shard, where nothing speaks
        against it, and the next to whoever has fewest. Raises what `Call.prepare` raises."""
        count = len(calls)
        first, parts = self._serials.take(count, now_ms), list[int]()
        if not any(shard.is_refused for shard in self._shards):
            parts = self._parts_of(first, pieces)
        known, due_ms, made = None, -1, list[Submitted]()
        serials = range(first, first + count)
        for serial, part, call in zip(serials, parts or repeat(-1, count), calls, strict=True):
            payload, stored = call.payload, call.stored
            if call.options is not known:
                known = call.options
                due_ms = now_ms + (known.delay_ms or 0)
                if (
                    not parts
                    or due_ms > TIME_MS_MAX
                    or known.at_ms is not None
                    or known.unique_for_ms is not None
                ):
                    due_ms = -1
            if (
                due_ms < 0
                or call.key is not None
                or call.unique is not None
                or len(payload) > payload_bytes_max
                or (stored is not None and self._index_tags)
            ):
                part = part if parts else self._healthy(part_of_serial(serial))
                made.append(self._draft_of(call, serial, part, now_ms, payload_bytes_max))
                continue
            made.append(
                Submitted(serial, part, call.task, due_ms, now_ms, payload, None, None, stored)
            )
        return made

    def _parts_of(self, first: int, pieces: Sequence[int]) -> list[int]:
        """Each its own, as far as the shard lets it: by them a repair tells how many shards there
        were."""
        count, parts = self._shard_count, list[int]()
        # Whoever has had least: in turns, a thousand and one, over and over, filled one half.
        places = sorted(range(count), key=self._given.__getitem__)
        for size, place in zip(pieces, cycle(places)):
            self._given[place] += size
            shard = (self._first_shard + place) % count
            parts += [part - part % count + shard for part in parts_of_serials(first, size)]
            first += size
        return [part if part <= PART_MAX else part - count for part in parts]

    def draft_of(
        self, call: Call[Any], now_ms: int, payload_bytes_max: int, part: int | None
    ) -> Submitted:
        """What becomes of a call that is submitted now; it takes this part, if it may take any.
        Raises what `Call.prepare` raises."""
        serial = self._serials.take(1, now_ms)
        if part is None:
            part = part_of_serial(serial)
        if self._shards[part % self._shard_count].is_refused:
            part = self._healthy(part)
        return self._draft_of(call, serial, part, now_ms, payload_bytes_max)

    def _draft_of(
        self,
        call: Call[Any],
        serial: int,
        part: int,
        now_ms: int,
        payload_bytes_max: int,
    ) -> Submitted:
        """Most have neither key nor unique, and nothing to be refused for: they are made here and
        now, with this part, which a shard has that serves."""
        options = call.options
        due_ms = now_ms + (options.delay_ms or 0)
        if (
            call.key is not None
            or call.unique is not None
            or options.at_ms is not None
            or options.unique_for_ms is not None
            or len(call.payload) > payload_bytes_max
            or due_ms > TIME_MS_MAX
        ):
            return self.draft(call.prepare(now_ms, payload_bytes_max=payload_bytes_max), serial)
        stored = call.stored
        if stored is not None:
            stored = with_indexed(stored, self._index_tags)
        return Submitted(serial, part, call.task, due_ms, now_ms, call.payload, None, None, stored)

    def child(self, prepared: Prepared, parent_part: int | None) -> Submitted:
        """What an outcome brings forth: without key and unique it takes its parent's part, unless
        that is None."""
        serial = self._serials.take(1, prepared.at_ms)
        if parent_part is None or prepared.key is not None or prepared.unique is not None:
            return self.draft(prepared, serial)
        return self._made(prepared, serial, parent_part)

    def _made(self, prepared: Prepared, serial: int, part: int) -> Submitted:
        kept_ms = None if prepared.unique is None else self._keep_ms(prepared.task)
        keep_ms = NEVER_MS if kept_ms is None else kept_ms
        return prepared.draft(serial, part, keep_ms=keep_ms, index_tags=self._index_tags)

    def _healthy(self, part: int) -> int:
        """While a shard is refused, tickets without key or unique take parts of the others."""
        shards, count = self._shards, self._shard_count
        if not shards[part % count].is_refused:
            return part
        for step in range(count):
            candidate = part + step if part + step <= PART_MAX else part - count + step
            if not shards[candidate % count].is_refused:
                return candidate
        return part
