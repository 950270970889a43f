"""A breaker against a list of what happened to it: which attempts it lets through, and when."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from parkade.shard.breaker import (
    CLOSED,
    FAILURE,
    FORCED_OPEN,
    HALF_OPEN,
    NEUTRAL,
    OPEN,
    SUCCESS,
    Circuit,
    CircuitRules,
    Trial,
    decode_circuit,
)

LEASE_MS = 70

STEPS = 500
ACTS = ("pass", "start", "end", "vanish", "force", "close", "restart")
WEIGHTS = (30, 40, 35, 2, 1, 1, 1)


@dataclass
class Model:
    """The rules of docs/semantics.md, Breakers, said once more and slowly: a state, the failures
    since the last success, and for each running attempt how many trips there were before it."""

    rules: CircuitRules
    state: str = "closed"
    trips: int = 0
    failed_at: list[int] = field(default_factory=list[int])
    until_ms: int | None = 0
    open_for_ms: int = 0
    probes: dict[int, int] = field(default_factory=dict[int, int])  # attempt -> lost at

    def look(self, now_ms: int) -> None:
        if self.state == "open" and self.until_ms is not None and now_ms >= self.until_ms:
            self.state, self.probes = "half", {}
        if self.state == "half":
            self.probes = {each: end for each, end in self.probes.items() if end > now_ms}

    def admits(self, now_ms: int) -> bool:
        self.look(now_ms)
        is_free = self.state == "half" and len(self.probes) < self.rules.probes
        return self.state == "closed" or is_free

    def end(self, attempt: int, trips: int, verdict: int, now_ms: int) -> None:
        self.look(now_ms)
        self.probes.pop(attempt, None)
        if trips < self.trips or self.state == "open" or verdict == NEUTRAL:
            return
        if verdict == SUCCESS:
            self.failed_at = []
            self.state, self.probes = "closed", {}
        elif self.state == "half":
            longest_ms = self.rules.max_open_for_ms
            self.trip(now_ms, min(max(2 * self.open_for_ms, self.rules.open_for_ms), longest_ms))
        else:
            self.failed_at.append(now_ms)
            recent = [at for at in self.failed_at if at + self.rules.window_ms > now_ms]
            if len(recent) >= self.rules.failures:
                self.trip(now_ms, self.rules.open_for_ms)

    def trip(self, now_ms: int, for_ms: int | None) -> None:
        self.state, self.failed_at, self.probes = "open", [], {}
        self.trips += 1
        self.open_for_ms = for_ms or 0
        self.until_ms = None if for_ms is None else now_ms + for_ms


class Histories:
    """A breaker, its model, and the attempts that run."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rules = CircuitRules(
            failures=rng.randint(1, 4),
            window_ms=rng.choice((20, 50, 1_000)),
            open_for_ms=rng.choice((10, 40)),
            max_open_for_ms=rng.choice((40, 100)),
            probes=rng.randint(1, 3),
        )
        self.circuit, self.model = Circuit(), Model(self.rules)
        self.now_ms = 1_000_000
        self.running: dict[int, tuple[Trial, int]] = {}
        self.last = 0

    def start(self) -> None:
        is_admitted = self.model.admits(self.now_ms)
        assert self.circuit.admits(self.rules, self.now_ms) == is_admitted
        if is_admitted:
            self.last += 1
            trial = self.circuit.begin(self.now_ms, LEASE_MS)
            self.running[self.last] = (trial, self.model.trips)
            if self.model.state == "half":
                self.model.probes[self.last] = self.now_ms + LEASE_MS

    def end(self, verdict: int | None) -> None:
        """An attempt ends with a verdict, or (None) is never heard of again."""
        if not self.running:
            return
        attempt = self.rng.choice(sorted(self.running))
        trial, trips = self.running.pop(attempt)
        if verdict is not None:
            was_open = self.model.state == "open"
            has_changed = self.circuit.report(self.rules, trial, verdict, self.now_ms)
            self.model.end(attempt, trips, verdict, self.now_ms)
            assert not (has_changed and was_open and self.model.state == "open")

    def restart(self) -> None:
        """Attempts are lost with their process, and so are failures that had not tripped it."""
        self.running.clear()
        encoded = self.circuit.encode()
        self.circuit = decode_circuit(encoded) if encoded else Circuit()
        model = self.model
        model.failed_at, model.probes = [], {}
        if model.state == "half":
            model.state = "open"

    def act(self) -> None:
        (name,) = self.rng.choices(ACTS, WEIGHTS)
        if name == "pass":
            self.now_ms += self.rng.choice((0, 1, 5, 10, 39, 40, 41, 100))
        elif name == "start":
            self.start()
        elif name == "end":
            self.end(self.rng.choice((NEUTRAL, SUCCESS, FAILURE, FAILURE)))
        elif name == "vanish":
            self.end(None)
        elif name == "force":
            for_ms = self.rng.choice((None, 30))
            self.circuit.force_open(self.now_ms, for_ms)
            self.model.trip(self.now_ms, for_ms)
        elif name == "close":
            self.circuit.close()
            self.model.state, self.model.failed_at, self.model.probes = "closed", [], {}
        else:
            self.restart()


def test_a_breaker_lets_through_what_its_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    names = {CLOSED: "closed", OPEN: "open", FORCED_OPEN: "open", HALF_OPEN: "half"}
    for _ in range(4):
        histories = Histories(rng)
        for _ in range(STEPS):
            histories.act()
            circuit, model, now_ms = histories.circuit, histories.model, histories.now_ms
            assert circuit.admits(histories.rules, now_ms) == model.admits(now_ms)
            assert names[circuit.state] == model.state


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=80),
    st.sampled_from((0.3, 0.5, 1.0)),
    st.integers(1, 12),
)
def test_a_share_of_failures_opens_it_and_never_fewer_calls_than_were_asked_for(
    calls: list[tuple[int, bool]], rate: float, min_calls: int
) -> None:
    rules = CircuitRules(window_ms=100, rate=rate, min_calls=min_calls)
    circuit, now_ms = Circuit(), 5_000
    seen: list[tuple[int, bool]] = []
    for step_ms, has_failed in calls:
        now_ms += step_ms
        seen.append((now_ms, has_failed))
        opened = circuit.report(rules, Trial(), FAILURE if has_failed else SUCCESS, now_ms)
        # The window is counted in tenths: what is surely within it, and what may be.
        surely = [failed for at, failed in seen if at > now_ms - 90]
        perhaps = [failed for at, failed in seen if at > now_ms - 110]
        if opened:
            assert has_failed and len(perhaps) >= min_calls
            return
        if has_failed and len(surely) == len(perhaps) and len(surely) >= min_calls:
            assert sum(surely) < rate * len(surely)


@given(st.lists(st.sampled_from((FAILURE, FAILURE, NEUTRAL)), max_size=12))
def test_each_probe_that_fails_doubles_the_wait_up_to_the_longest(verdicts: list[int]) -> None:
    rules = CircuitRules(failures=1, open_for_ms=1_000, max_open_for_ms=6_000)
    circuit, now_ms, expected_ms = Circuit(), 0, 1_000
    assert circuit.report(rules, Trial(), FAILURE, now_ms)
    for verdict in verdicts:
        assert circuit.next_ms() == now_ms + expected_ms
        assert not circuit.admits(rules, now_ms + expected_ms - 1)
        now_ms += expected_ms
        assert circuit.admits(rules, now_ms)
        probe = circuit.begin(now_ms, LEASE_MS)
        assert not circuit.admits(rules, now_ms), "the others wait for the probe"
        if circuit.report(rules, probe, verdict, now_ms):
            expected_ms = min(2 * expected_ms, 6_000)
        else:
            assert circuit.admits(rules, now_ms), "a probe that says nothing frees its turn"
            expected_ms = min(2 * expected_ms, 6_000)
            assert circuit.report(rules, circuit.begin(now_ms, LEASE_MS), FAILURE, now_ms)


@given(st.integers(1, 10**6), st.sampled_from((None, 50)))
def test_a_clock_set_back_keeps_nothing_closed_off_for_longer_than_was_meant(
    back_ms: int, for_ms: int | None
) -> None:
    rules = CircuitRules(failures=1, open_for_ms=1_000)
    circuit, now_ms = Circuit(), 10**7
    circuit.report(rules, Trial(), FAILURE, now_ms)
    circuit.look(now_ms - back_ms)
    until_ms = circuit.next_ms()
    assert until_ms is not None and until_ms <= now_ms - back_ms + 1_000
    circuit.force_open(now_ms, for_ms)
    assert not circuit.admits(rules, now_ms - back_ms)
    assert circuit.admits(rules, now_ms + 10**8) == (for_ms is not None)
