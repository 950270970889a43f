"""How spans, sizes, counts and values are written for people."""

import pytest

from parkade.wording import bytes_text, closest, count_text, shown, span_text

DAY = 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (12, "12 ms"),
        (400, "0.4 s"),
        (1_000, "1 s"),
        (1_500, "1.5 s"),
        (9_999, "10 s"),
        (12_345, "12 s"),
        (60_000, "1 min"),
        (192_000, "3 m 12 s"),
        (2_460_000, "41 min"),
        (7_860_000, "2 h 11 min"),
        (7_200_000, "2 h"),
        (3 * DAY, "3 d"),
        (771 * DAY, "2 y 41 d"),
        (365 * DAY + 5, "1 y"),
        (-192_000, "-3 m 12 s"),
    ],
)
def test_a_span_is_written_in_its_two_largest_units(ms: int, text: str) -> None:
    assert span_text(ms) == text


@pytest.mark.parametrize(
    ("count", "binary", "text"),
    [
        (0, False, "0 bytes"),
        (999, False, "999 bytes"),
        (1_000, False, "1.0 kB"),
        (4_100_000, False, "4.1 MB"),
        (12_000_000, False, "12 MB"),
        (999_999, False, "1.0 MB"),
        (8 << 30, True, "8.0 GiB"),
        (12 << 20, True, "12 MiB"),
        (2_000, True, "2.0 KiB"),
        (10**15, False, "1000 TB"),
    ],
)
def test_a_size_is_written_with_two_figures(count: int, binary: bool, text: str) -> None:
    assert bytes_text(count, binary=binary) == text


def test_a_count_is_written_in_groups_of_three() -> None:
    assert [count_text(n) for n in (7, 1204, 8310422)] == ["7", "1 204", "8 310 422"]


def test_the_closest_name_is_offered_only_when_near() -> None:
    assert closest("billing.chrage", ["billing.charge", "mail"]) == "billing.charge"
    assert closest("zzz", ["billing.charge"]) is None


def test_a_shown_value_is_one_short_line_whatever_its_repr_does() -> None:
    class Sick:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 10_000_000)) <= 80
    assert len(shown(list(range(1_000)))) == 80
    assert shown(Sick()) == "<Sick, whose repr() raised RuntimeError>"
    assert shown(10**5_000) == "<int, whose repr() raised ValueError>"
