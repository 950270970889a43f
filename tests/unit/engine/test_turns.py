"""Who is behind the first, and whose turn it is after a long row of one."""

from hypothesis import given
from hypothesis import strategies as st

from parkade.limits import STARTS_IN_A_ROW_MAX
from parkade.ranking import Rank, Ranking
from parkade.turns import Turns


class Waiting:
    """A task whose head the test sets."""

    def __init__(self, rank: Rank | None = None) -> None:
        self.kind = "thread"
        self.rank = rank
        self.listed: Rank | None = None

    def head(self) -> Rank | None:
        return self.rank


# (which, a priority and a head; none: nothing of it may start)
CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.tuples(st.integers(-1, 0), st.integers(0, 9)))
)


@given(CHANGES)
def test_the_one_behind_the_first_is_another_whatever_became_of_their_heads(
    changes: list[tuple[int, Rank | None]],
) -> None:
    tasks = [Waiting() for _ in range(4)]
    ranking: Ranking[Waiting] = Ranking()
    for step, (which, rank) in enumerate(changes):
        # No two tickets have one rank.
        tasks[which].rank = None if rank is None else (rank[0], 100 * rank[1] + step)
        ranking.note(tasks[which])
        in_order = sorted((t for t in tasks if t.rank is not None), key=lambda t: t.rank or (0, 0))
        first = ranking.first()
        assert first is (in_order[0] if in_order else None)
        if first is not None:
            assert ranking.first_but_one() is (in_order[1] if len(in_order) > 1 else None)
            assert ranking.first() is first


def test_a_head_that_was_better_for_a_while_is_not_behind_itself() -> None:
    ranking: Ranking[Waiting] = Ranking()
    task = Waiting((0, 5))
    for head in ((0, 5), (0, 3), (0, 5)):
        task.rank = head
        ranking.note(task)
        assert ranking.first() is task
        assert ranking.first_but_one() is None


def test_a_row_begins_anew_where_nobody_of_its_priority_waits() -> None:
    turns: Turns[Waiting] = Turns()
    crowd, lesser = Waiting((0, 1)), Waiting((1, 0))
    for task in (crowd, lesser):
        task.listed = task.rank
    for _ in range(STARTS_IN_A_ROW_MAX):
        turns.note(crowd)
    assert turns.left(crowd) == 0
    assert turns.next(crowd, lesser) is crowd
    assert turns.left(crowd) == STARTS_IN_A_ROW_MAX


def test_what_starts_in_between_ends_a_row_of_whatever_kind() -> None:
    turns: Turns[Waiting] = Turns()
    crowd, other = Waiting((0, 1)), Waiting((0, 2))
    for task, count, in_a_row in (
        (crowd, 64, 64),
        (crowd, 64, 128),
        (other, 1, 1),
        (crowd, 64, 64),
    ):
        turns.note(task, count)
        assert turns.in_a_row == in_a_row
