"""diskcache's Deque as a queue, with synchronous=FULL."""

from collections.abc import Sequence

from diskcache import Cache, Deque

from bench.peers.driver import Drained, Driver, Dues, Handler, NotOffered, timed_each

IDLE_S = 0.002
FULL = 2


class Diskcache(Driver):
    """It has no worker and no acknowledgement: what is taken is gone."""

    settings = (
        "Deque on a Cache with sqlite_synchronous=2 (FULL; its default is NORMAL); bulk in one "
        f"transact(); one thread of ours pops, looking every {IDLE_S * 1e3:.0f} ms when idle"
    )
    has_bulk = True
    has_delays = False

    def open(self) -> None:
        directory = str(self.place.directory / "cache")
        self._cache = Cache(directory, eviction_policy="none", sqlite_synchronous=FULL)
        self._deque = Deque.fromcache(self._cache)
        self._worker: Drained | None = None

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        if dues is not None:
            raise NotOffered("no delays")
        return timed_each(lambda payload, _: self._deque.append(payload), payloads, None)

    def submit_bulk(self, payloads: Sequence[str], dues: Dues = None) -> None:
        if dues is not None:
            raise NotOffered("no delays")
        with self._deque.transact():
            self._deque.extend(payloads)

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        def take() -> tuple[str, object] | None:
            try:
                return self._deque.popleft(), None
            except IndexError:
                return None

        self._worker = Drained(take, lambda _: None, handler, IDLE_S)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._cache.close()
