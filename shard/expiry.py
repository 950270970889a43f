"""When tickets that wait to be started for the first time expire: one timer each, in memory.

A ticket gets its timer when it enters its lane, and a parked one when the sweep meets its marked
entry in the agenda. The timers go by the settled clock, so a wrong clock expires nothing.
"""

from heapq import heapify, heappop, heappush

from parkade.shard.lanes import SERIAL_BITS, SERIAL_MASK

__all__ = ["Expiries"]


class Expiries:
    """Timers by serial; the latest one set for a serial is the one that counts."""

    __slots__ = ("armed", "heap")

    def __init__(self) -> None:
        self.armed: dict[int, int] = {}
        self.heap: list[int] = []

    def arm(self, serial: int, expiry_ms: int) -> None:
        """Set the timer of a ticket, in ms."""
        if self.armed.get(serial) == expiry_ms:
            return
        self.armed[serial] = expiry_ms
        heappush(self.heap, expiry_ms << SERIAL_BITS | serial)
        if len(self.heap) > 2 * len(self.armed) + 64:
            self.heap = [at << SERIAL_BITS | s for s, at in self.armed.items()]
            heapify(self.heap)

    def disarm(self, serial: int) -> None:
        """Forget the timer of a ticket, if it has one."""
        self.armed.pop(serial, None)

    def next_ms(self) -> int | None:
        """When the first timer fires, on the settled clock; None when there is none."""
        heap, armed = self.heap, self.armed
        while heap:
            expiry_ms, serial = heap[0] >> SERIAL_BITS, heap[0] & SERIAL_MASK
            if armed.get(serial) == expiry_ms:
                return expiry_ms
            heappop(heap)
        return None

    def take_due(self, settled_ms: int, limit: int) -> list[int]:
        """The serials whose timers have fired, each once."""
        due: list[int] = []
        while len(due) < limit:
            first_ms = self.next_ms()
            if first_ms is None or first_ms > settled_ms:
                break
            serial = heappop(self.heap) & SERIAL_MASK
            del self.armed[serial]
            due.append(serial)
        return due
