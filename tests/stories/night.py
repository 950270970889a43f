"""Story 3, driven: an import that is killed with its process, one that goes on behind it, and one
that somebody cancels."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from parkade import Attempt, Ticket

ROWS = 30_000
story: Any = import_module("s3_long_import")


def begin() -> Ticket[int]:
    rows = Path("rows.csv")
    rows.write_text("".join(f"{n},Ann\n" for n in range(ROWS)))
    ticket: Ticket[int] = story.import_rows.submit(str(rows))
    Path("ticket").write_text(ticket.id)
    return ticket


def await_rows(ticket: Ticket[int], count: int) -> None:
    """Until so many are done, as anybody would see it."""
    while True:
        progress = ticket.info().progress
        if progress is not None and progress.done >= count:
            return


def until_it_is_killed() -> None:
    with story.engine:
        await_rows(begin(), 1_500)
        os.kill(os.getpid(), signal.SIGKILL)


def to_the_end() -> None:
    checkpoint: Any = Attempt.checkpoint

    def shown(attempt: Attempt, *given: Any) -> Any:
        cursor = checkpoint(attempt, *given)
        print("began at line", cursor.line)
        return cursor

    vars(story)["Attempt"].checkpoint = shown
    with story.engine:
        ticket = story.import_rows.ticket(Path("ticket").read_text())
        rows = ticket.result("40s")
        print(", ".join(attempt.outcome for attempt in ticket.attempts()))
        print(rows, "rows")


def until_it_is_cancelled() -> None:
    with story.engine:
        ticket = begin()
        await_rows(ticket, 1)
        print(ticket.cancel("enough"))
        while ticket.info().state == "running":
            pass
        print(ticket.info().state + ":", ticket.why().text.rpartition(": ")[2])


{
    "until it is killed": until_it_is_killed,
    "to the end": to_the_end,
    "until it is cancelled": until_it_is_cancelled,
}[sys.argv[1]]()
