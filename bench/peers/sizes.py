"""How much each stage is asked to do."""

from dataclasses import asdict, dataclass
from typing import Any

KILLS = ("kill_queue", "kill_crowd")
ONCE = ("sleepers", *KILLS)  # what is counted or weighed, and is the same in the next run
STAGES = ("submit", "bulk", "lives", "start", "wake", *ONCE)


@dataclass(frozen=True)
class Sizes:
    """Counts, and seconds that bound what a slow queue may take."""

    runs: int  # of what is a rate or a time
    slow_s: float  # who takes longer for a stage is not asked for it in the next run
    seconds: float  # of each rate
    trial: int  # jobs that tell how fast a queue is, before a size is chosen
    starts: int
    crowd: int  # due at one moment
    lead_s: float  # to start a worker before that moment
    sleepers: int
    load_s: float  # for the slow: they have fewer asleep
    rest_s: float  # between an open and a look at what is idle
    idle_s: float
    killed: int
    patience: float  # for one thing to happen
    after_s: float  # for what a killed process left; heartbeats take half a minute to be missed
    stage_s: float

    @classmethod
    def usual(cls) -> "Sizes":
        """To quote."""
        return cls(
            runs=3,
            slow_s=30.0,
            seconds=2.0,
            trial=200,
            starts=150,
            crowd=20_000,
            lead_s=4.0,
            sleepers=100_000,
            load_s=30.0,
            rest_s=3.0,
            idle_s=5.0,
            killed=2_000,
            patience=60.0,
            after_s=45.0,
            stage_s=600.0,
        )

    @classmethod
    def small(cls) -> "Sizes":
        """To see that it works."""
        return cls(
            runs=1,
            slow_s=30.0,
            seconds=0.2,
            trial=20,
            starts=10,
            crowd=200,
            lead_s=1.5,
            sleepers=1_000,
            load_s=15.0,
            rest_s=0.5,
            idle_s=0.5,
            killed=100,
            patience=15.0,
            after_s=6.0,
            stage_s=60.0,
        )

    def as_json(self) -> dict[str, Any]:
        """For the stages, and for the result."""
        return asdict(self)
