"""Equal log lines, of which one stands for many: a thing that fails in each call fails often."""

import threading

__all__ = ["FOLD_MS", "Folding"]

FOLD_MS = 10_000
FOLDED_KINDS_MAX = 1_024


class Folding:
    """Lets one of many equal warnings through in 10 s, with the number that it stands for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the core's too (`parkade.core_locks`)
        self._seen: dict[tuple[str, str, str], tuple[int, int]] = {}  # since when, how many more

    def take(self, kind: tuple[str, str, str], now_ms: int) -> int | None:
        """How many were kept back since the last one that was let through; None: keep this back."""
        with self.lock:
            since_ms, kept = self._seen.get(kind, (now_ms - FOLD_MS, 0))
            if 0 <= now_ms - since_ms < FOLD_MS:
                self._seen[kind] = (since_ms, kept + 1)
                return None
            if len(self._seen) >= FOLDED_KINDS_MAX:
                self._seen.clear()
            self._seen[kind] = (now_ms, 0)
            return kept
