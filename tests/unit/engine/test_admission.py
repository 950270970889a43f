"""Places are dealt to lanes: who goes first, and which lanes have nobody to send."""

from kit.rig import Rig
from parkade.admission import Admission
from parkade.shard.placement import Placement


class Handlers:
    """Every task has a handler."""

    def kind_of(self, task: str) -> str | None:
        return "thread"


class Lanes:
    """A shard as admission sees it."""

    number = 0

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    @property
    def placement(self) -> Placement:
        return self.rig.core.placement

    def is_suspect(self, serial: int) -> bool:
        return self.rig.core.hot[serial].is_suspect


def test_a_lane_whose_next_tickets_are_still_being_read_is_passed_over() -> None:
    rig = Rig()
    parked = rig.submit(9_000)
    rig.checkpoint()
    assert rig.core.placement.where(parked) == "parked"
    rig.pass_ms(9_000)
    hot = rig.submit(0)
    rig.begin_sweep()
    rig.end_reads()
    rig.advance()
    assert rig.core.placement.where(parked) == "loading"

    admission = Admission({"thread": 3}, Handlers())
    picks = list(admission.take([Lanes(rig)], rig.now_ms))

    assert [pick.serial for pick in picks] == [hot]
    assert admission.used == {"thread": 1}
