"""The board of progress: the latest wins, and what goes along with records is bounded."""

from parkade.asks import Seen
from parkade.links import progress_note
from parkade.progress import LEAD_BYTES_MAX, PROGRESS_MS_MIN, ProgressBoard
from parkade.shard.ticket import Ticket
from parkade.store.record import Completed, ProgressNote


def note(done: float, message: str = "") -> ProgressNote:
    return ProgressNote(done, None, message, 5)


def ended(serial: int) -> Completed:
    return Completed(serial, 1, 5, b"")


def test_the_latest_wins_and_is_taken_once() -> None:
    board = ProgressBoard(2)
    for done in range(100):
        board.put(1, 7, 1, note(done))
    assert board.take(0, [], 1_000) == []
    [taken] = board.take(1, [], 1_000)
    assert (taken.serial, taken.fence, taken.value, taken.progress) == (7, 1, None, note(99))
    assert board.take(1, [], 9_000) == []


def test_a_shard_takes_at_most_every_250_ms_but_always_of_the_tickets_that_its_records_name() -> (
    None
):
    board = ProgressBoard(1)
    board.put(0, 7, 1, note(1))
    assert len(board.take(0, [], 1_000)) == 1
    board.put(0, 7, 1, note(2))
    board.put(0, 8, 1, note(3))
    assert board.take(0, [], 1_000 + PROGRESS_MS_MIN - 1) == []
    assert [n.serial for n in board.take(0, [ended(8)], 1_000 + PROGRESS_MS_MIN - 1)] == [8]
    assert [n.serial for n in board.take(0, [], 1_000 + PROGRESS_MS_MIN)] == [7]


def test_what_goes_along_at_once_is_bounded_and_the_rest_follows() -> None:
    board = ProgressBoard(1)
    for serial in range(1_000):
        board.put(0, serial, 1, note(serial, "x" * 1_000))
    counts = []
    for nth in range(1, 1_000):
        taken = board.take(0, [ended(999)] if nth == 1 else [], nth * PROGRESS_MS_MIN)
        if not taken:
            break
        assert nth > 1 or taken[0].serial == 999
        counts.append(len(taken))
    assert sum(counts) == 1_000
    assert max(counts) <= LEAD_BYTES_MAX // 4_000


def test_a_ticket_that_runs_is_shown_as_it_stands_and_no_other() -> None:
    board = ProgressBoard(1)
    board.put(0, 7, 2, note(1))

    def shown(*, fence: int, state: int = 1) -> ProgressNote | None:
        ticket = Ticket(7, 0, "t", state, 0, 0, 0, fence=fence, progress=note(0))
        return board.shown(0, Seen(ticket)).ticket.progress

    assert shown(fence=2) == note(1)
    assert shown(fence=3) == note(0)
    assert shown(fence=2, state=0) == note(0)


def test_all_of_a_note_has_4_kib_whatever_the_letters() -> None:
    kept = progress_note(1, 2, "\N{SNOWMAN}" * 5_000, 9)
    assert len(kept.message.encode()) <= 4_096 - 64
    assert kept.message.startswith("\N{SNOWMAN}" * 1_000)
    assert (kept.done, kept.total, kept.at_ms) == (1.0, 2.0, 9)
