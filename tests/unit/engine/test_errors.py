"""Every error: its text, its code, its fields, and that docs/errors.md tells the same."""

import copy
import inspect
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parkade import errors
from parkade.errors import (
    Backpressure,
    BlockingInEventLoop,
    ConfigError,
    DashboardAuthMissing,
    DuplicateTicket,
    EngineClosed,
    EngineInUse,
    ForkedEngine,
    FormatTooNew,
    MissingExtra,
    NaiveDatetime,
    NoAttempt,
    NotDead,
    ParkadeError,
    PartialSubmit,
    PayloadError,
    ResultGone,
    ResultTimeout,
    ShardMismatch,
    StorageDamaged,
    StorageError,
    StorageFull,
    SubmitReentered,
    TicketCancelled,
    TicketError,
    TicketExpired,
    TicketFailed,
    UnknownTask,
    UnknownTicket,
    WaitInsideAttempt,
    WorkflowChanged,
)

ROOT = Path(__file__).resolve().parents[3]
ID = "38h8wt3py00004hmnf6yy4hm"
DIRECTORY = "/srv/app/data"
TICKET = cast("Any", SimpleNamespace(id=ID))
WARNING_CODE = "PK-302"  # a log line at start, and no error

# One of each code, as its section in docs/errors.md shows it.
EXAMPLES: tuple[ParkadeError, ...] = (
    EngineInUse(
        DIRECTORY, pid=4127, command="uvicorn app:app", host="web-1", open_for_ms=7_200_000
    ),
    ForkedEngine(opened_in_pid=4100, pid=4127),
    ShardMismatch(DIRECTORY, asked=8, found=4),
    FormatTooNew(
        DIRECTORY,
        written_by="1.4",
        written_format=3,
        version="1.2",
        format_max=2,
        backup_before="2026-11-02",
    ),
    StorageDamaged(DIRECTORY, shard=2, where=f"record {ID}", reason="checksum mismatch", healthy=3),
    StorageFull(shard=0, map_bytes=8 << 30, free_bytes=12 << 20, outcomes_waiting=3),
    ConfigError.option(
        "Engine",
        "durability",
        "fsync",
        'use "disk" (survives power loss), "process" (survives kill -9) or "memory" (tests)',
    ),
    MissingExtra("The dashboard", packages="Starlette and Jinja2", extra="dash"),
    StorageError(shard=0, what="write its journal", reason="Input/output error"),
    ConfigError(
        f"/srv/app does not exist, so {DIRECTORY} cannot be made in it. Make the parent directory "
        "first, or give another path",
        code="PK-111",
    ),
    ConfigError(
        "This process may open 64 files, and 16 shards need 120. Raise the limit (ulimit -n 120), "
        "or make the directory with fewer shards",
        code="PK-112",
    ),
    BlockingInEventLoop("resize.submit", instead="resize.asubmit"),
    PayloadError(
        "billing.charge",
        "cannot store field order.card of type CardObject. Pass an id, or a Struct/dataclass of "
        "plain fields",
        argument="order",
    ),
    NaiveDatetime(datetime(2027, 1, 1, 9, 0)),
    DuplicateTicket(TICKET, unique="order-7", standing="kept until 2026-11-30T14:02+00:00"),
    Backpressure(ready=1_000_000, max_ready=1_000_000, oldest_ms=2_460_000),
    EngineClosed("resize.submit"),
    WaitInsideAttempt("reports.nightly", ticket_id=ID, places="32 threads"),
    NoAttempt(),
    PartialSubmit([TICKET] * 3, total=100_000, cause=StorageFull(shard=0, outcomes_waiting=0)),
    ConfigError(
        "resize.options(delay=nan): it is not a finite number. Use seconds (0.25), a timedelta, or "
        'text such as "250ms", "10m", "1h30m", "3d", "1y"',
        code="PK-210",
    ),
    SubmitReentered("resize.submit"),
    UnknownTask("billing.chrage", known=["billing.charge", *(f"t{n}" for n in range(13))]),
    ConfigError(
        '@engine.task(unique="order-{ordr.id}"): charge() has no argument "ordr". Arguments: order',
        code="PK-303",
    ),
    ConfigError(
        '@engine.cron("61 3 * * *"): bad minute 61. Five or six fields: [second] minute hour day '
        "month weekday",
        code="PK-304",
    ),
    ConfigError(
        '@engine.task: the name "resize" of app.video.resize() is taken by app.images.resize(). '
        'Give one of them another: name="..."',
        code="PK-305",
    ),
    ConfigError(
        "@engine.task: pages() cannot be a task: it is a generator; return the result, or submit "
        "a ticket for each part",
        code="PK-306",
    ),
    TicketFailed(
        ID,
        task="billing.charge",
        attempts=6,
        reason="exhausted",
        error_type="httpx.ConnectTimeout",
        error="timed out",
        remote_traceback="Traceback (most recent call last): ...",
    ),
    TicketCancelled(ID, reason="typo in subject", ago_ms=2_000),
    TicketExpired(ID, expires_ms=60_000),
    ResultTimeout(
        ID,
        waited_ms=30_000,
        why="It is scheduled, due in 18 s",
    ),
    ResultGone(ID, finished="2026-11-02"),
    UnknownTicket(ID),
    NotDead(ID, call="engine.dead.resolve", state="done"),
    WorkflowChanged(
        "onboarding",
        ticket_id=ID,
        asks='step "kyc"',
        has='step "score"',
        recorded="2026-11-20",
        patch="kyc",
    ),
    DashboardAuthMissing(),
)


def classes() -> set[type[ParkadeError]]:
    return {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, ParkadeError)
    }


def sections() -> dict[str, str]:
    """The sections of docs/errors.md by their code."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    parts = re.split(r'^<a id="(PK-\d+)"></a>\n\n', text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_error_that_can_be_raised_has_an_example_here() -> None:
    abstract = {ParkadeError, TicketError}
    assert {type(example) for example in EXAMPLES} == classes() - abstract


def test_every_code_stands_for_one_thing() -> None:
    codes = [example.code for example in EXAMPLES]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.code))
def test_the_text_ends_with_its_code_and_fits_no_placeholder(example: ParkadeError) -> None:
    assert re.fullmatch(r"PK-\d{3}", example.code)
    assert str(example).endswith(f" [{example.code}]")
    assert "{" not in str(example).replace("{ordr.id}", "")
    assert "  " not in str(example)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.code))
def test_the_document_shows_the_text_and_says_when_and_what_to_do(example: ParkadeError) -> None:
    section = sections()[example.code]
    title, _, body = section.partition("\n")
    assert title == f"## {example.code} {type(example).__name__}"
    assert f"```text\n{example}\n```" in body
    assert "**When.** " in body
    assert "**What to do.** " in body
    assert example.anchor == f"docs/errors.md#{example.code}"


def test_the_document_has_exactly_the_codes_that_exist() -> None:
    assert set(sections()) == {example.code for example in EXAMPLES} | {WARNING_CODE}


def test_the_document_lists_every_code_that_the_code_names() -> None:
    named = {
        code
        for file in (ROOT / "engine").rglob("*.py")
        for code in re.findall(r"PK-\d{3}", file.read_text(encoding="utf-8"))
    }
    assert named - {"PK-000"} <= set(sections())


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    lines = re.findall(
        r"^    ([| ]*)(?:\|--|`--)? ?(\w+)", errors.__doc__ or "", flags=re.MULTILINE
    )
    drawn = {name for _, name in lines if name[0].isupper() and name != "PK"}
    assert drawn == {cls.__name__ for cls in classes()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.code))
def test_an_error_can_be_copied_with_all_its_fields(example: ParkadeError) -> None:
    twin = copy.copy(example)
    assert type(twin) is type(example)
    assert str(twin) == str(example)
    assert twin.__dict__ == example.__dict__


def test_errors_can_be_caught_by_their_ordinary_names() -> None:
    assert issubclass(PayloadError, TypeError)
    assert issubclass(NaiveDatetime, ValueError)
    assert issubclass(UnknownTask, LookupError)
    assert issubclass(UnknownTicket, LookupError)
    assert issubclass(StorageError, OSError)
    assert issubclass(StorageFull, StorageError)
    assert issubclass(ResultTimeout, TimeoutError)
    assert issubclass(MissingExtra, ImportError)
    assert issubclass(NoAttempt, RuntimeError)
    assert issubclass(WaitInsideAttempt, RuntimeError)


def test_a_second_process_is_told_what_is_known_of_the_first() -> None:
    assert "in process 4127. One" in str(EngineInUse("d", pid=4127))
    assert "in another process (started 1 s ago). One" in str(EngineInUse("d", open_for_ms=1_000))
    assert "in process 1 (on web-1). One" in str(EngineInUse("d", pid=1, host="web-1"))
    here = str(EngineInUse("d", pid=1, host="web-1", is_here=True))
    assert here.startswith("d is already open in this process, by another Engine. Make one")


def test_damage_of_the_house_stops_the_engine_and_that_of_a_shard_does_not() -> None:
    house = str(StorageDamaged("d", shard=None, where="house/a at 8", reason="bad checksum"))
    assert house == (
        "The house of d is damaged at house/a at 8: bad checksum. Without it the engine does not "
        "open. Next: parkade --dir d verify --deep [PK-105]"
    )
    alone = str(StorageDamaged("d", shard=0, where="x", reason="y"))
    assert "y. Shard 00 is closed. Next" in alone
    pair = str(StorageDamaged("d", shard=0, where="x", reason="y", healthy=1))
    assert "The other shard is fine and keeps running; shard 00 is closed." in pair


def test_a_failed_ticket_carries_the_remote_traceback_as_a_note() -> None:
    error = TicketFailed(ID, task="t", attempts=1, reason="failed", remote_traceback="boom")
    assert error.__notes__ == ["boom"]
    assert "died after 1 attempt: failed. The handler's" in str(error)
    bare = TicketFailed(ID, task="t", attempts=2, reason="late")
    assert not hasattr(bare, "__notes__")
    assert "late. Attempts: parkade show" in str(bare)


def test_a_naive_time_is_shown_to_the_second_only_where_it_has_one() -> None:
    assert str(NaiveDatetime(datetime(2027, 1, 1, 9))).startswith("at=2027-01-01T09:00 has")
    assert str(NaiveDatetime(datetime(2027, 1, 1, 9, 0, 5))).startswith("at=2027-01-01T09:00:05 ")
    named = NaiveDatetime(datetime(2027, 1, 1, 9), what="resize.options(at)")
    assert str(named).startswith("resize.options(at=2027-01-01T09:00) has no time zone")


def test_a_partial_submit_survives_a_cause_whose_text_raises() -> None:
    class Sick(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    error = PartialSubmit([], total=None, cause=Sick())
    assert str(error).startswith("0 tickets were accepted before: Sick: its text cannot be shown")


def test_what_is_kept_for_ever_was_not_forgotten_by_age() -> None:
    assert str(UnknownTicket(ID, keep_done=None)) == (
        f"No ticket {ID}: mistyped, or of another directory [PK-406]"
    )
    assert str(ResultGone(ID, keep_done=None)).endswith("its result is no longer kept [PK-405]")


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    near = ConfigError.unknown_option("resize.options", "dely", ["delay", "at"])
    assert str(near) == (
        "resize.options(dely=...): there is no such option; did you mean delay=? [PK-107]"
    )
    far = ConfigError.unknown_option("x", "zzz", ["delay", "at"])
    assert str(far) == "x(zzz=...): there is no such option; it takes at, delay [PK-107]"


def test_an_unknown_task_without_a_near_name_offers_none() -> None:
    error = UnknownTask("zzz", known=["billing.charge"])
    assert error.close is None
    assert str(error) == 'No task "zzz" is registered. Registered: billing.charge [PK-301]'
    assert str(UnknownTask("zzz", known=[])).endswith("Registered: none [PK-301]")
