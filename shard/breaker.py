"""The state of one breaker, as arithmetic on ms: closed, open, half-open.

Closed lets all through and counts failures; at the threshold it opens. Open lets none through
until its time; then it is half-open and lets a few probes through, whose outcomes decide. Each trip
begins a new epoch. An attempt carries the epoch it began in, so one from before the trip says
nothing about the target as it is now (docs/semantics.md, Breakers).

Time is the wall clock's, which may be set: a wait that is suddenly longer than it was ever meant to
be is cut back to that.
"""

from typing import Final, NamedTuple

import msgspec

__all__ = [
    "CLOSED",
    "FAILURE",
    "FORCED_OPEN",
    "HALF_OPEN",
    "NEUTRAL",
    "OPEN",
    "STATE_NAMES",
    "SUCCESS",
    "Circuit",
    "CircuitRules",
    "Trial",
    "decode_circuit",
]

CLOSED, OPEN, HALF_OPEN, FORCED_OPEN = range(4)
STATE_NAMES: Final = ("closed", "open", "half_open", "forced_open")

NEUTRAL: Final = 0  # says nothing about the target
SUCCESS: Final = 1
FAILURE: Final = 2

_SLOTS: Final = 10  # a window of the rate rule is counted in so many parts


class CircuitRules(NamedTuple):
    """When it opens and for how long. `rate` None: at `failures` in a row within the window; else
    when that share of at least `min_calls` in the window failed."""

    failures: int = 5
    window_ms: int = 30_000
    rate: float | None = None
    min_calls: int = 10
    open_for_ms: int = 30_000
    max_open_for_ms: int = 600_000
    probes: int = 1


class Trial(NamedTuple):
    """What an attempt carries: the epoch it began in, and the number of its probe (0: none)."""

    epoch: int = 0
    probe: int = 0


class _Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What outlives the process. New fields go at the end, with a default."""

    state: int
    epoch: int
    opened_ms: int
    until_ms: int
    open_for_ms: int
    cause: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


class Circuit:
    """One breaker. A new one is closed. `until_ms` is -1 for an open end."""

    __slots__ = (
        "_calls",
        "_failed_at",
        "_probe_last",
        "_probes",
        "cause",
        "epoch",
        "open_for_ms",
        "opened_ms",
        "read_ms",
        "state",
        "until_ms",
    )

    def __init__(self) -> None:
        self.state = CLOSED
        self.epoch = 0
        self.opened_ms = 0
        self.until_ms = 0
        self.open_for_ms = 0  # of the trip that holds, or the last one
        self.cause = ""
        self._failed_at: list[int] = []  # of the failures in a row, the oldest first
        self._calls: dict[int, list[int]] = {}  # part of the window -> calls, failures
        self._probes: dict[int, tuple[int, int]] = {}  # number -> given up at, its lease
        self._probe_last = 0
        self.read_ms = 0

    # ------------------------------------------------------------------------------- starting

    def look(self, now_ms: int) -> None:
        """Move on as far as time alone does: to half-open, and past probes that never reported."""
        if now_ms < self.read_ms:
            self._clock_went_back(now_ms)
        self.read_ms = now_ms
        if self.state in (OPEN, FORCED_OPEN) and 0 <= self.until_ms <= now_ms:
            self.state = HALF_OPEN
            self._probes.clear()
        elif self.state == HALF_OPEN:
            lost = [probe for probe, (end_ms, _) in self._probes.items() if end_ms <= now_ms]
            for probe in lost:
                del self._probes[probe]

    def _clock_went_back(self, now_ms: int) -> None:
        if self.until_ms > now_ms + self.open_for_ms:
            self.until_ms = now_ms + self.open_for_ms
        for probe, (end_ms, lease_ms) in self._probes.items():
            self._probes[probe] = (min(end_ms, now_ms + lease_ms), lease_ms)

    def admits(self, rules: CircuitRules, now_ms: int) -> bool:
        """Whether an attempt may start."""
        self.look(now_ms)
        if self.state == HALF_OPEN:
            return len(self._probes) < max(1, rules.probes)
        return self.state == CLOSED

    def begin(self, now_ms: int, lease_ms: int) -> Trial:
        """An attempt starts: it may. A probe that has not reported after `lease_ms` is lost."""
        if self.state != HALF_OPEN:
            return Trial(self.epoch)
        self.until_ms = now_ms  # tried: see `is_abandoned`
        self._probe_last += 1
        self._probes[self._probe_last] = (now_ms + lease_ms, lease_ms)
        return Trial(self.epoch, self._probe_last)

    def next_ms(self) -> int | None:
        """When time alone may let an attempt through; None: never, or one may go now."""
        if self.state in (OPEN, FORCED_OPEN):
            return None if self.until_ms < 0 else self.until_ms
        if self.state == HALF_OPEN and self._probes:
            return min(end_ms for end_ms, _ in self._probes.values())
        return None

    # -------------------------------------------------------------------------------- outcomes

    def report(
        self, rules: CircuitRules, trial: Trial, verdict: int, now_ms: int, cause: str = ""
    ) -> bool:
        """An attempt has ended; whether the breaker opened or closed by it. `cause` is what failed,
        for people."""
        self.look(now_ms)
        self._probes.pop(trial.probe, None)
        if trial.epoch != self.epoch or self.state in (OPEN, FORCED_OPEN) or verdict == NEUTRAL:
            return False
        if self.state == HALF_OPEN:
            return self._probed(rules, verdict, now_ms, cause)
        if rules.rate is None:
            self._calls.clear()
            return self._in_a_row(rules, verdict, now_ms, cause)
        self._failed_at.clear()
        return self._by_share(rules, rules.rate, verdict, now_ms, cause)

    def _probed(self, rules: CircuitRules, verdict: int, now_ms: int, cause: str) -> bool:
        if verdict == SUCCESS:
            self._shut()
            return True
        doubled_ms = min(max(self.open_for_ms * 2, rules.open_for_ms), rules.max_open_for_ms)
        self._open(now_ms, doubled_ms, f"a probe failed{_by(cause)}")
        return True

    def _in_a_row(self, rules: CircuitRules, verdict: int, now_ms: int, cause: str) -> bool:
        if verdict == SUCCESS:
            self._failed_at.clear()
            return False
        recent = [at for at in self._failed_at if min(at, now_ms) + rules.window_ms > now_ms]
        recent.append(now_ms)
        self._failed_at = recent
        if len(recent) < rules.failures:
            return False
        count = len(recent)
        failures = "1 failure" if count == 1 else f"{count} failures in a row"
        self._open(now_ms, rules.open_for_ms, f"{failures}{_by(cause)}")
        return True

    def _by_share(
        self, rules: CircuitRules, rate: float, verdict: int, now_ms: int, cause: str
    ) -> bool:
        width_ms = max(1, rules.window_ms // _SLOTS)
        part = now_ms // width_ms
        self._calls = {at: seen for at, seen in self._calls.items() if part - _SLOTS < at <= part}
        counted = self._calls.setdefault(part, [0, 0])
        counted[0] += 1
        if verdict == SUCCESS:
            return False
        counted[1] += 1
        calls = sum(seen[0] for seen in self._calls.values())
        failed = sum(seen[1] for seen in self._calls.values())
        if calls < rules.min_calls or failed < rate * calls:
            return False
        self._open(now_ms, rules.open_for_ms, f"{failed} of {calls} calls failed{_by(cause)}")
        return True

    # ------------------------------------------------------------------------------- operators

    def force_open(self, now_ms: int, for_ms: int | None, reason: str = "") -> None:
        """Open by hand: for so long, or until it is closed by hand."""
        self._open(now_ms, 0 if for_ms is None else for_ms, reason or "opened by hand")
        self.state = FORCED_OPEN
        if for_ms is None:
            self.until_ms = -1

    def close(self) -> None:
        """Closed by hand, whatever it was."""
        self._shut()

    def _open(self, now_ms: int, open_for_ms: int, cause: str) -> None:
        self.state = OPEN
        self.epoch += 1
        self.opened_ms = now_ms
        self.open_for_ms = open_for_ms
        self.until_ms = now_ms + open_for_ms
        self.cause = cause
        self._forget()

    def _shut(self) -> None:
        self.state = CLOSED
        self.cause = ""
        self._forget()

    def _forget(self) -> None:
        self._failed_at.clear()
        self._calls.clear()
        self._probes.clear()

    # ----------------------------------------------------------------------------- for others

    def failures(self, rules: CircuitRules, now_ms: int) -> int:
        """The failures that count at present."""
        if rules.rate is None:
            return sum(min(at, now_ms) + rules.window_ms > now_ms for at in self._failed_at)
        part = now_ms // max(1, rules.window_ms // _SLOTS)
        return sum(seen[1] for at, seen in self._calls.items() if part - _SLOTS < at <= part)

    def is_idle(self, rules: CircuitRules, now_ms: int) -> bool:
        """Whether a new one would do as well, for attempts that have not begun."""
        if self.state != CLOSED or self.failures(rules, now_ms):
            return False
        part = now_ms // max(1, rules.window_ms // _SLOTS)
        return not any(part - _SLOTS < at <= part for at in self._calls)

    def is_abandoned(self, rules: CircuitRules, now_ms: int) -> bool:
        """Whether nobody has tried its target for so long, though one might have, that how it was
        says nothing any more."""
        self.look(now_ms)
        is_free = self.state == HALF_OPEN and not self._probes
        return is_free and self.until_ms + rules.max_open_for_ms <= now_ms

    def encode(self) -> bytes:
        """What must outlive the process; empty: nothing. Half-open is open whose time has come."""
        if self.state == CLOSED:
            return b""
        state = OPEN if self.state == HALF_OPEN else self.state
        return _encode(
            _Row(state, self.epoch, self.opened_ms, self.until_ms, self.open_for_ms, self.cause)
        )


def decode_circuit(encoded: bytes) -> Circuit:
    """The breaker that `encode` stored. Raises `msgspec.MsgspecError`."""
    row = _decode(encoded)
    circuit = Circuit()
    circuit.state, circuit.epoch, circuit.opened_ms = row.state, row.epoch, row.opened_ms
    circuit.until_ms, circuit.open_for_ms, circuit.cause = row.until_ms, row.open_for_ms, row.cause
    circuit.read_ms = row.opened_ms
    return circuit


def _by(cause: str) -> str:
    return f": {cause}" if cause else ""
