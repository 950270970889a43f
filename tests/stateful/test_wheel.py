"""A wheel is a sorted list: whatever is done to both, they agree."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from parkade.wheel import SPAN_MS, Timer, Wheel, check

HOUR_MS, DAY_MS, YEAR_MS = 3_600_000, 86_400_000, 31_536_000_000
EDGES_MS = (0, 1, 63, 64, 65, 4_095, 4_096, SPAN_MS - 1, SPAN_MS, SPAN_MS + 1, 2 * SPAN_MS)

# Few distinct dues, so that timers meet in one millisecond by every way there is to get there.
dues = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(EDGES_MS),
    st.sampled_from(EDGES_MS).map(lambda edge_ms: -edge_ms),
    st.integers(0, SPAN_MS - 1),
    st.sampled_from((HOUR_MS, DAY_MS, YEAR_MS, 100 * YEAR_MS)),
)
steps = st.one_of(
    st.integers(0, 3), st.sampled_from(EDGES_MS), st.sampled_from((HOUR_MS, DAY_MS, YEAR_MS))
)
limits = st.one_of(st.none(), st.integers(0, 5))


class WheelIsASortedList(RuleBasedStateMachine):
    """The model is a list, sorted by due at every question; sorting keeps insertion order."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.wheel = Wheel(0)
        self.model: list[Timer] = []
        self.serial = 0

    @initialize(anchor_ms=st.sampled_from((0, 1, 4_097, SPAN_MS - 1, 1_893_456_000_123, -99_999)))
    def begin(self, anchor_ms: int) -> None:
        self.now_ms = anchor_ms
        self.wheel = Wheel(anchor_ms)

    @rule(due=dues)
    def insert(self, due: int) -> None:
        self.serial += 1
        self.wheel.insert(self.now_ms + due, self.serial)
        self.model.append((self.now_ms + due, self.serial))

    @rule(many=st.lists(dues, max_size=12))
    def insert_many(self, many: list[int]) -> None:
        timers = [(self.now_ms + due, self.serial + nth) for nth, due in enumerate(many, 1)]
        self.serial += len(many)
        self.wheel.insert_many(timers)
        self.model += timers

    @rule(pick=st.integers(0, 1_000_000), count=st.integers(1, 4))
    def insert_where_a_timer_is(self, pick: int, count: int) -> None:
        if not self.model:
            return
        at_ms = self.model[pick % len(self.model)][0]
        for _ in range(count):
            self.serial += 1
            self.wheel.insert(at_ms, self.serial)
            self.model.append((at_ms, self.serial))

    @rule(step_ms=steps, limit=limits)
    def poll_as_time_goes_by(self, step_ms: int, limit: int | None) -> None:
        self.now_ms += step_ms
        self._poll(limit)

    @rule(step_ms=steps, limit=limits)
    def poll_with_the_clock_set_back(self, step_ms: int, limit: int | None) -> None:
        self.now_ms -= step_ms
        self._poll(limit)

    @rule(late_ms=st.sampled_from((-1, 0, 1)), limit=limits)
    def poll_around_the_next_wake(self, late_ms: int, limit: int | None) -> None:
        wake_ms = self.wheel.next_wake()
        if wake_ms is not None:
            self.now_ms = wake_ms + late_ms
            self._poll(limit)

    @rule(step_ms=steps, sign=st.sampled_from((-1, 1)))
    def reanchor(self, step_ms: int, sign: int) -> None:
        self.now_ms += sign * step_ms
        self.wheel.reanchor(self.now_ms)

    @rule(due=dues)
    def lower_the_horizon(self, due: int) -> None:
        self._sort()
        timers = self.wheel.drain()
        assert timers == self.model
        self.model = [timer for timer in timers if timer[0] <= self.now_ms + due]
        self.wheel.insert_many(self.model)

    @rule(sure=st.integers(0, 9))
    def clear(self, sure: int) -> None:
        if sure == 0:
            self.wheel.clear()
            self.model = []

    @invariant()
    def wheel_and_list_agree(self) -> None:
        check(self.wheel)
        self._sort()
        assert list(self.wheel.items()) == self.model
        assert len(self.wheel) == len(self.model)
        assert self.wheel.next_wake() == (self.model[0][0] if self.model else None)

    def _poll(self, limit: int | None) -> None:
        self._sort()
        due = [timer for timer in self.model if timer[0] <= self.now_ms][:limit]
        self.model = self.model[len(due) :]
        assert self.wheel.poll(self.now_ms, limit) == due

    def _sort(self) -> None:
        self.model.sort(key=lambda timer: timer[0])


TestWheelIsASortedList = WheelIsASortedList.TestCase
TestWheelIsASortedList.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
