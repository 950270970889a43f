"""The rule of acceptance on its own: from what was found to a log or a refusal."""

import dataclasses

import pytest

from parkade.store.acceptance import Run, accept
from parkade.store.errors import Damage
from parkade.store.frame import FrameHead
from parkade.store.segment import HEADER_BYTES, Mode, SegmentHeader, SegmentName, SegmentScan

FRAME_BYTES = 48


def scan(
    first_lsn: int,
    lsns: list[int],
    *,
    epoch: int = 1,
    mode: Mode = Mode.DISK,
    synced: int | None = None,
    prior_end: int = 0,
    has_header: bool = True,
    hole_at: int | None = None,
) -> SegmentScan:
    """A segment with a frame of one record for each LSN; a hole takes the place of frame N."""
    name = SegmentName(first_lsn, epoch, bytes([epoch]) * 8)
    known = first_lsn - 1 if synced is None else synced
    header = SegmentHeader(b"salty", 0, epoch, name.salt, first_lsn, known, mode, prior_end)
    frames = []
    for number, lsn in enumerate(lsns):
        place = number + (hole_at is not None and number >= hole_at)
        frame_synced = known if mode is Mode.PROCESS else lsn - 1
        offset = HEADER_BYTES + place * FRAME_BYTES
        frames.append(FrameHead(offset, FRAME_BYTES, 8, 1, lsn, frame_synced))
    whole = len(lsns) if hole_at is None else hole_at
    end = HEADER_BYTES + whole * FRAME_BYTES
    return SegmentScan(
        f"/j/{name}", name, header if has_header else None, tuple(frames), end, 4_096
    )


def lsns(run: Run) -> list[int]:
    return [frame.first_lsn for part in run.parts for frame in part.frames]


def test_nothing_at_all_is_an_empty_log_that_ends_with_the_store() -> None:
    run = accept([], 7)
    assert (run.last_lsn, run.proof_lsn, run.end, run.epoch_max) == (7, 7, 0, 0)


def test_neighbours_make_one_run() -> None:
    run = accept([scan(1, [1, 2]), scan(3, [3, 4]), scan(5, [], epoch=2)], 3)
    assert lsns(run) == [1, 2, 3, 4]
    assert (run.last_lsn, run.proof_lsn, run.epoch_max) == (4, 4, 2)
    assert [each.first_lsn for each in run.spent] == [5]


def test_a_segment_that_begins_where_another_has_been_is_damage() -> None:
    with pytest.raises(Damage, match="begins at LSN 2, which the segments before it hold"):
        accept([scan(1, [1, 2]), scan(2, [2, 3], epoch=2)], 0)


def test_a_valid_frame_with_another_lsn_than_must_come_is_damage() -> None:
    with pytest.raises(Damage, match="holds LSN 5 where 3 must come") as caught:
        accept([scan(1, [1, 2, 5])], 0)
    assert caught.value.offset == HEADER_BYTES + 2 * FRAME_BYTES


def test_a_missing_file_is_damage_where_its_neighbour_ends() -> None:
    with pytest.raises(Damage, match="ends at LSN 2, and LSN 5") as caught:
        accept([scan(1, [1, 2]), scan(5, [5, 6])], 0)
    assert caught.value.offset == HEADER_BYTES + 2 * FRAME_BYTES


def test_a_hole_before_valid_frames_is_damage_in_disk_mode_whatever_they_prove() -> None:
    with pytest.raises(Damage, match="others stand behind it") as caught:
        accept([scan(1, [1, 2, 3], hole_at=1)], 3)
    assert caught.value.offset == HEADER_BYTES + FRAME_BYTES


@pytest.mark.parametrize("lsns_there", [[], [8]])
def test_a_file_without_its_header_is_damage_for_it_had_one_before_its_name(
    lsns_there: list[int],
) -> None:
    with pytest.raises(Damage, match="its header is gone") as caught:
        accept([scan(8, lsns_there, has_header=False)], 7)
    assert caught.value.offset == 0


def test_a_last_file_that_says_that_the_log_goes_on_is_damage() -> None:
    first = scan(1, [1, 2])
    end = FrameHead(first.end, 40, 0, 0, 3, 2, goes_on=True)
    first = dataclasses.replace(first, frames=(*first.frames, end), end=end.end)
    assert accept([first, scan(3, [3], epoch=2)], 0).last_lsn == 3
    with pytest.raises(Damage, match="goes on in another file, which is missing") as caught:
        accept([first], 0)
    assert (caught.value.path, caught.value.offset) == (first.path, first.end)


def test_a_lost_frame_without_records_is_found_by_the_next_header() -> None:
    end = HEADER_BYTES + 3 * FRAME_BYTES
    with pytest.raises(Damage, match=f"knows frames up to byte {end}"):
        accept([scan(1, [1, 2]), scan(3, [3], epoch=2, prior_end=end)], 0)


def test_in_process_mode_a_hole_ends_the_log_and_what_follows_is_cut() -> None:
    process = Mode.PROCESS
    run = accept([scan(1, [1, 2, 5], mode=process), scan(6, [6], mode=process, synced=0)], 0)
    assert (lsns(run), run.last_lsn) == ([1, 2], 2)
    assert [each.first_lsn for each in run.beyond] == [6]


def test_in_process_mode_the_store_may_have_what_the_journal_lost() -> None:
    process = Mode.PROCESS
    run = accept([scan(1, [1, 2, 5, 6], mode=process)], 4)
    assert (lsns(run), run.last_lsn) == ([5, 6], 6)
    files = [scan(1, [1, 2], mode=process), scan(5, [5], mode=process, synced=0)]
    run = accept(files, 4)
    assert lsns(run) == [5] and [each.first_lsn for each in run.spent] == [1]
    run = accept([scan(1, [1, 2], mode=process)], 9)
    assert (run.last_lsn, run.proof_lsn) == (2, 9)


def test_in_process_mode_too_what_was_synced_must_be_there() -> None:
    with pytest.raises(Damage, match="ends at LSN 2, and LSN 4"):
        accept([scan(1, [1, 2], mode=Mode.PROCESS, synced=4)], 0)
