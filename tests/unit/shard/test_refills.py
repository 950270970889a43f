"""How rows of lanes are read back into their windows: in pieces, and no faster than is bearable."""

from kit.rig import SMALL, Rig
from parkade.shard import Bounds

WIDE = SMALL._replace(
    wheel_max=1_000, window_max=2, windows_max=1_000, lanes_max=100, moves_max=1_000
)


def test_where_nothing_is_read_on_each_lane_still_reads_its_rows_once_between_two_commits() -> None:
    rig = Rig(WIDE)
    crowd = [rig.submit(nth, task="crowd") for nth in range(12)]
    other = [rig.submit(nth, task="other") for nth in range(3)]
    rig.pass_ms(20)
    rig.settle_down()
    rig.checkpoint()
    placement = rig.core.placement
    placement.lanes.reads_on = False
    taken: list[int] = []
    for commits in range(3):
        for _ in range(4):
            rig.settle_down()  # which ends only if nobody wakes for what must not be read
            taken += rig.pop_all()
            rig.checked()
        assert [s for s in taken if s in crowd] == crowd[: 2 * commits + 4]
        assert [s for s in taken if s in other] == other
        rig.start(*taken[-2:])
        rig.checkpoint()
    placement.lanes.reads_on = True
    for at in (8, 10):
        rig.settle_down()
        assert rig.pop_all() == crowd[at : at + 2]


def test_a_window_is_filled_again_in_pieces_so_that_frames_wait_for_none_of_them_long() -> None:
    rig = Rig(Bounds())
    serials = [rig.submit() for _ in range(2_000)]
    rig.settle_down()
    rig.checkpoint()
    assert rig.pop_all() == serials[:1_024]
    for at in range(1_024, 2_000, 128):
        (ask,) = rig.core.placement.want_refills(rig.now_ms)
        assert ask.limit == 128
        result = rig.store.refill(ask)
        assert rig.core.placement.refilled(result, rig.now_ms)
        assert rig.pop_all() == serials[at : at + 128]
    rig.checked()
