"""What a shard has read of its store, at the edges of what it may ask for."""

from pathlib import Path

from kit.parking import Content, diff, open_parked, pending
from parkade.reading import StoreReader
from parkade.shard import RefillAsk
from parkade.shard.lanes import SERIAL_MASK


def test_a_refill_from_before_every_rank_begins_at_the_lanes_first_row(tmp_path: Path) -> None:
    cars = {serial: pending(serial * 10, place="lane") for serial in (5, 6, 7)}
    store = open_parked(tmp_path)
    store.commit(diff(Content(), Content(lsn=3, now_ms=100, cars=cars)))
    reader = StoreReader(store, lambda lane: 1)

    refilled, _ = reader.refill(RefillAsk(1, (-1, SERIAL_MASK), 2))
    assert refilled.rows == [(50, 5), (60, 6)]
    assert not refilled.is_end

    refilled, _ = reader.refill(RefillAsk(1, (60, 6), 2))
    assert refilled.rows == [(70, 7)]
    assert refilled.is_end
    store.close()
