"""Replay: frames into a core, and nothing that does not follow on."""

from typing import Any

import pytest

from kit.rig import Rig
from parkade.opening import replay
from parkade.reading import Read, StoreReader
from parkade.shard import Shard
from parkade.shard.commands import Loaded
from parkade.shard.states import CANCELLED, DONE, NO_FENCE, PENDING
from parkade.store.errors import Damage
from parkade.store.frame import Frame
from parkade.store.record import Cancelled, Completed, Record, Started, encode_records

DAY_MS = 86_400_000


class NoStore(StoreReader):
    """A store in which there is nothing."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def load(self, serials: Any, uniques: Any = (), *, has_bodies: bool = False) -> Read:
        self.asked.append(sorted(serials))
        return Read(Loaded(1 << 62, dict.fromkeys(serials), dict.fromkeys(uniques)))


def frame(first_lsn: int, records: list[Record], count: int | None = None) -> Frame:
    body = encode_records(records)
    return Frame(first_lsn, len(records) if count is None else count, body, 0, 1, "path", 64)


def drafts(count: int) -> list[Record]:
    rig = Rig()
    return [rig.draft() for _ in range(count)]


def test_frames_are_applied_from_where_the_store_ends() -> None:
    records = drafts(6)
    core = Shard(lsn=2)
    replay(core, NoStore(), [frame(1, records[:4]), frame(5, records[4:])], "journal")
    assert core.lsn == 6
    assert sorted(core.hot) == sorted(record.serial for record in records[2:])  # type: ignore[attr-defined]
    assert core.counters == {("t", 0): 4}


def test_an_empty_frame_changes_nothing() -> None:
    core = Shard(lsn=2)
    replay(core, NoStore(), [frame(3, []), frame(3, drafts(1))], "journal")
    assert core.lsn == 3


def test_whole_lives_in_a_tail_do_not_touch_the_store() -> None:
    store, core, now_ms = NoStore(), Shard(), 1_000
    frames: list[Frame] = []
    for draft in drafts(50):
        serial: int = draft.serial  # type: ignore[attr-defined]
        for record in (draft, Started([serial], now_ms), Completed(serial, 1, now_ms, b"")):
            frames.append(frame(len(frames) + 1, [record]))
    replay(core, store, frames, "journal")
    assert core.counters == {("t", DONE): 50}
    assert store.asked == []


@pytest.mark.parametrize("ends_in_a_later_batch", [False, True])
def test_a_sleeper_that_the_tail_ends_is_ended(ends_in_a_later_batch: bool) -> None:
    rig, core = Rig(), Shard()
    ended, left = rig.draft(DAY_MS), rig.draft(DAY_MS)
    frames = [
        frame(1, [ended, left]),
        frame(3, [Cancelled(ended.serial, NO_FENCE, rig.now_ms, "")]),
    ]
    for batch in [[one] for one in frames] if ends_in_a_later_batch else [frames]:
        replay(core, NoStore(), batch, "journal")
    assert core.counters == {("t", PENDING): 1, ("t", CANCELLED): 1}


def test_what_a_tail_names_of_the_store_is_read_once_for_many_frames() -> None:
    store, now_ms = NoStore(), 1_000
    started = [frame(n, [Started([n], now_ms)]) for n in range(1, 6)]
    ended = [frame(n + 5, [Completed(n, 1, now_ms, b"")]) for n in range(1, 6)]
    replay(Shard(), store, started + ended, "journal")
    assert store.asked == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([frame(2, drafts(1))], "behind LSN 0"),
        ([frame(1, drafts(2)), frame(4, drafts(1))], "behind LSN 2"),
        ([frame(1, drafts(2), count=3)], "3 records from LSN 1 on holds 2"),
        ([frame(1, drafts(2), count=1)], "1 records from LSN 1 on holds 2"),
        ([Frame(1, 1, b"\xc1", 0, 1, "path", 64)], "no records"),
    ],
)
def test_what_does_not_follow_on_is_damage(frames: list[Frame], reason: str) -> None:
    with pytest.raises(Damage, match=reason) as caught:
        replay(Shard(), NoStore(), frames, "journal")
    assert (caught.value.path, caught.value.offset) == ("journal", 64)
