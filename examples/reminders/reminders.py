"""Reminders out of a CSV file, each parked until it is due. Kill it at any time, and run it again.

    python reminders.py reminders.csv

The file has a name, a text and a due time for each: a span from now like 90s, 10m or 2y, or a date
like 2031-05-01T09:00+02:00.
"""

import csv
import sys
from datetime import datetime, timedelta

from parkade import Engine, Ticket

# Who was reminded is remembered for a year, so that running this again does not remind them twice.
engine = Engine("reminders-data", keep_done="1y")


def say(line: str) -> None:
    """A whole line at once: handlers and the main program speak from different threads."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@engine.task(unique="{name}")  # one ticket for each name, however often it is submitted
def remind(name: str, text: str) -> str:
    say(f"reminder {name}: {text}")
    return f"{name} was reminded"


def park(row: dict[str, str]) -> Ticket[str]:
    """When this returns, the reminder is on disk."""
    if "T" in row["due"]:
        later = remind.options(at=datetime.fromisoformat(row["due"]))
    else:
        later = remind.options(delay=row["due"])
    return later.submit(row["name"], row["text"])


def main(path: str) -> None:
    with engine, open(path, encoding="utf-8", newline="") as file:
        soon: list[Ticket[str]] = []
        for row in csv.DictReader(file):
            ticket = park(row)
            info = ticket.info()
            say(f"{'parked' if ticket.created else 'known'} {ticket.id} {row['name']}")
            if info.due_at < info.as_of + timedelta(minutes=1):
                soon.append(ticket)
        for ticket in soon:
            say(ticket.result(timeout="1m"))
        say("the others sleep on; run this again whenever you like")


if __name__ == "__main__":
    main(sys.argv[1])
