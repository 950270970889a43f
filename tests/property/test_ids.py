"""Ticket ids: what is written is read again, and nothing else is an id."""

from hypothesis import given
from hypothesis import strategies as st

from parkade.shard.ticket import SERIAL_MAX, TicketId, format_id, parse_id

IDS = st.builds(
    TicketId,
    st.integers(0, SERIAL_MAX),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF_FFFF_FFFF),
)


@given(IDS)
def test_an_id_is_read_as_it_was_written(known: TicketId) -> None:
    text = format_id(*known)
    assert (len(text), text.islower() or text.isdigit()) == (24, True)
    assert parse_id(text) == known


@given(IDS, IDS)
def test_ids_sort_by_serial(one: TicketId, other: TicketId) -> None:
    if one.serial < other.serial:
        assert format_id(*one) < format_id(*other)


@given(IDS, st.integers(0, 23), st.characters() | st.sampled_from("ilouILOU_+- ٣½\n"))
def test_no_other_spelling_is_an_id(known: TicketId, place: int, other: str) -> None:
    text = format_id(*known)
    changed = text[:place] + other + text[place + 1 :]
    found = parse_id(changed)
    assert found is None or format_id(*found) == changed
    assert parse_id(text + other) is None
    assert parse_id(text[1:]) is None
