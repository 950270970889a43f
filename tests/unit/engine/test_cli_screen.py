"""What the command line prints: harmless text, whole columns, local times."""

import time
from collections.abc import Iterator

import pytest

from parkade.cli.screen import Screen, clean, cut, ms_of
from parkade.clock import SystemClock
from parkade.durations import datetime_of
from parkade.facts import plain


def iso(ms: int) -> str:
    return str(plain(datetime_of(ms)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("tab\there", "tab\\there"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\x00", "\\x00"),
        ("größe ✓", "größe ✓"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_is_made_harmless_and_stays_readable(text: str, shown: str) -> None:
    assert clean(text) == shown
    assert clean(text).encode()


def test_a_cut_text_says_that_it_is_cut() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcdef", 0) == "…"


def test_only_the_last_column_gives_way_to_the_edge(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.width = 20
    screen.table(["id", "n", "note"], [["0123456789", "7", "a long note"]], right=(1,))
    head, row = capsys.readouterr().out.splitlines()
    assert head == "id          n  note"
    assert row == "0123456789  7  a lo…"


def test_a_table_without_rows_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table(["id", "note"], [])
    assert capsys.readouterr().out == "id  note\n"


@pytest.fixture
def east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The first zone of the globe to see a new year."""
    monkeypatch.setenv("TZ", "EAST-14")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("east")
def test_the_last_hours_of_the_calendar_are_told_in_any_zone() -> None:
    assert Screen().time("9999-12-31T09:59:59.999Z") == "9999-12-31 23:59"
    assert Screen().time("9999-12-31T23:59:59.999Z") == "9999-12-31 23:59"


def test_times_are_told_from_now() -> None:
    screen, now_ms = Screen(), SystemClock().now_ms()
    assert screen.ago(iso(now_ms - 3 * 86_400_000 - 60_000)) == "3 d ago"
    assert screen.ago(iso(now_ms + 2 * 365 * 86_400_000 + 60_000)) == "in 2 y"
    assert len(screen.time(iso(now_ms - 400 * 86_400_000))) == len("2026-01-01 12:00")
    assert screen.time(None) == "-"


@pytest.mark.parametrize("ms", [0, 1, 999, 1_700_000_000_123, 253_402_300_799_999])
def test_a_time_in_facts_comes_back_as_it_went(ms: int) -> None:
    assert ms_of(iso(ms)) == ms
    assert iso(ms).endswith("Z")


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Screen().state("dead") == "dead"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in Screen().state("dead")
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen().state("dead") == "dead"
