"""The feed of events: one writer, the core thread, and whoever likes to read.

What happened goes into a ring and to those who listen, once it is durable. A listener costs the
core thread a look at each event, and no more: it takes them where it runs, when it likes. Numbers
run from 1 for each open of the engine; the ring keeps the last 100,000.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec

from parkade.events import Note

__all__ = ["RING_EVENTS", "Feed", "Listening", "Watching"]

RING_EVENTS = 100_000
BLOCK_EVENTS = 1_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, str | None, Any]]).decode


class Listening(Protocol):
    """Who is told of everything. Called on the core thread: it must not wait, and must not
    raise."""

    def offer(self, first: int, notes: Sequence[Note]) -> None:
        """Events with the numbers from `first` on."""

    def end(self) -> None:
        """There will be no more."""


class Watching(Protocol):
    """Who is told of one ticket; as `Listening`."""

    serial: int

    def tell(self, seq: int, number: int, note: Note) -> None:
        """`number` counts the notes of the ticket's shard."""

    def look_again(self) -> None:
        """Something may have happened that no event tells of."""

    def end(self) -> None:
        """There will be no more."""


_NOBODY: dict[int, Watching] = {}


class _Ring:
    """The last events. All but the latest are packed, a thousand at a time, into a quarter of their
    memory. Any thread reads, and sees what was there at one moment."""

    def __init__(self) -> None:
        # Replaced as a whole: number of the first event, packed blocks, what is not packed yet.
        self._held: tuple[int, tuple[tuple[int, bytes], ...], list[Note]] = (1, (), [])

    def take(self, notes: Sequence[Note]) -> None:
        first, blocks, recent = self._held
        recent += notes
        if len(recent) < BLOCK_EVENTS:
            return
        blocks = (*blocks, (len(recent), _encode(recent)))
        count = sum(count for count, _ in blocks)
        dropped = 0
        while count - blocks[dropped][0] >= RING_EVENTS:
            count -= blocks[dropped][0]
            first += blocks[dropped][0]
            dropped += 1
        self._held = (first, blocks[dropped:], [])

    def after(self, seq: int) -> tuple[int, Iterator[tuple[int, Note]]]:
        """The number of the first event that is there, and in order those with numbers above
        `seq`."""
        first, blocks, recent = self._held
        recent = recent[:]
        parts: list[Iterator[tuple[int, Note]]] = []
        begin = first
        for count, block in blocks:
            if begin + count - 1 > seq:
                parts.append(_numbered(begin, block))
            begin += count
        parts.append(enumerate(recent, begin))
        found = chain.from_iterable(parts)
        return first, (entry for entry in found if entry[0] > seq)


def _numbered(first: int, block: bytes) -> Iterator[tuple[int, Note]]:
    yield from enumerate(_decode(block), first)


class Feed:
    """`publish`, `look_again` and `close` are for the core thread, the rest for any."""

    def __init__(self) -> None:
        self.last = 0  # number of the latest event
        self.is_over = False
        self._ring = _Ring()
        # Whoever watches and is forgotten leaves in a collection, on any thread: in here as well.
        self._lock = threading.RLock()
        self._listening: tuple[weakref.ref[Listening], ...] = ()
        self._watching: dict[int, dict[int, Watching]] = {}  # by serial, then by who watches
        self._at_end: list[Callable[[], None]] = []

    # --------------------------------------------------------------------------- the core thread

    def publish(self, notes: Sequence[Note], numbered: int = 0) -> None:
        """These are durable. `numbered`: how many notes their shard had made before them."""
        if not notes:
            return
        first = self.last + 1
        self._ring.take(notes)
        self.last += len(notes)
        # Those who listen come after the ring: who joins in between finds the events there.
        for known in self._listening:
            listening = known()
            if listening is not None:
                listening.offer(first, notes)
        if self._watching:
            self._tell(first, numbered + 1, notes)

    def _tell(self, first: int, number: int, notes: Sequence[Note]) -> None:
        watching = self._watching
        for offset, note in enumerate(notes):
            if note[2] in watching:
                for watch in list(watching.get(note[2], _NOBODY).values()):
                    watch.tell(first + offset, number + offset, note)

    def look_again(self) -> None:
        """A shard was recovered: what it had not told of may have happened all the same."""
        for watch in self._all_watching():
            watch.look_again()

    def _all_watching(self) -> "list[Watching]":
        everyone = list(self._watching.values())
        return [watch for watching in everyone for watch in list(watching.values())]

    def close(self) -> None:
        """Nothing more will happen: iterations end with what is there. Twice is once."""
        with self._lock:
            self.is_over = True
            listening, watching = self._listening, self._all_watching()
            at_end, self._at_end = self._at_end, []
        for known in listening:
            left = known()
            if left is not None:
                left.end()
        for watch in watching:
            watch.end()
        for tell in at_end:
            tell()

    # --------------------------------------------------------------------------------- any thread

    def after(self, seq: int) -> tuple[int, Iterator[tuple[int, Note]]]:
        """The number of the first event that the ring has, and those above `seq`, in order."""
        return self._ring.after(seq)

    def is_heard(self) -> bool:
        """Whether anybody may be waiting for what happens next."""
        return bool(self._listening or self._watching)

    def join(self, listening: Listening) -> None:
        """From now on it is told; until it leaves, or nobody holds it any more."""
        with self._lock:
            self._drop(None)
            known = weakref.ref(listening)
            self._listening = (*self._listening, known)
            is_over = self.is_over
        if is_over:
            listening.end()

    def leave(self, listening: Listening) -> None:
        with self._lock:
            self._drop(listening)

    def _drop(self, leaving: Listening | None) -> None:
        """Under the lock: this one, and those that nobody holds any more. Somebody else may leave
        in the midst of it."""
        while True:
            before = self._listening
            left = [known for known in before if known() not in (None, leaving)]
            if self._listening is before:
                self._listening = (*left,)
                return

    def watch(self, watching: Watching) -> None:
        """From now on it is told of its ticket, until `unwatch`."""
        with self._lock:
            others = self._watching.get(watching.serial) or {}
            others[id(watching)] = watching
            # Put in also where they are there: the last of them may have left just now.
            self._watching[watching.serial] = others
            is_over = self.is_over
        if is_over:
            watching.end()

    def unwatch(self, watching: Watching) -> None:
        with self._lock:
            left = self._watching.get(watching.serial, _NOBODY)
            left.pop(id(watching), None)
            if not left:
                self._watching.pop(watching.serial, None)

    def when_over(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the feed is closed: at once, if it is. It must not raise."""
        with self._lock:
            if not self.is_over:
                self._at_end.append(tell)
                return
        tell()
