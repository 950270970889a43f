"""The states of a ticket, and the table of transitions. Read this first.

A ticket is in exactly one of six durable states, and only a record moves it to another. Everything
else that people say about a ticket is not a state. *Scheduled* and *ready* are two words for
pending, told apart by the clock. *Held* is ready and not allowed to start. *Waiting in a lane*,
*parked*, *in the overlay* tell where a pending ticket lies (docs/architecture.md, Placement), and a
restart forgets them. If it is not in the table below, it is not durable.

One table, `NEXT`, says what each record does to each state. A pair that is not in it changes
nothing: that is how a record about a ticket that was cancelled meanwhile stays harmless, and why
replay may meet any record in any state. Three things follow from reading it as a whole.

* Only `Started` leads to running, and it starts from pending only. So a ticket runs once at a time.
* There are four ways back to pending: Retried, Snoozed, Released, Revived. Each of them says what
  becomes of the budget, so there is no way around it.
* Done, cancelled and expired lead nowhere but to gone. Dead leads on, by somebody's hand.

The state alone does not decide. A record about an attempt names a fence, the number of the start it
belongs to, and counts only while the ticket runs under that fence; Buried and Cancelled of a ticket
that does not run name `NO_FENCE`. So an attempt that was given up cannot end the one that followed.
"""

from typing import Final

from parkade.store.record import (
    Bookmarked,
    Buried,
    Cancelled,
    CancelRequested,
    Completed,
    Dropped,
    Expired,
    Forgotten,
    Late,
    Record,
    Released,
    Rescheduled,
    Resolved,
    Retried,
    Revived,
    Snoozed,
    Started,
)

__all__ = [
    "CANCELLED",
    "DEAD",
    "DONE",
    "EXPIRED",
    "GONE",
    "NEXT",
    "NO_FENCE",
    "PENDING",
    "RUNNING",
    "STATES",
    "STATE_NAMES",
]

# Stored in heads, counters and index keys: a number keeps its meaning.
PENDING: Final = 0
RUNNING: Final = 1
DONE: Final = 2
DEAD: Final = 3
CANCELLED: Final = 4
EXPIRED: Final = 5

GONE: Final = -1
"""No state: the ticket is deleted. Never stored."""

STATES: Final = (PENDING, RUNNING, DONE, DEAD, CANCELLED, EXPIRED)
STATE_NAMES: Final = ("pending", "running", "done", "dead", "cancelled", "expired")

NO_FENCE: Final = -1
"""What Buried and Cancelled name when no attempt was running."""

NEXT: Final[dict[tuple[int, type[Record]], int]] = {
    # a pending ticket
    (PENDING, Started): RUNNING,
    (PENDING, Buried): DEAD,
    (PENDING, Cancelled): CANCELLED,
    (PENDING, Expired): EXPIRED,
    (PENDING, Rescheduled): PENDING,
    # an attempt under way, and its end
    (RUNNING, Bookmarked): RUNNING,
    (RUNNING, CancelRequested): RUNNING,
    (RUNNING, Completed): DONE,
    (RUNNING, Retried): PENDING,
    (RUNNING, Snoozed): PENDING,
    (RUNNING, Released): PENDING,
    (RUNNING, Buried): DEAD,
    (RUNNING, Cancelled): CANCELLED,
    # by somebody's hand
    (DEAD, Revived): PENDING,
    (DEAD, Resolved): DONE,
    (DEAD, Dropped): GONE,
    # retention
    (DONE, Forgotten): GONE,
    (DEAD, Forgotten): GONE,
    (CANCELLED, Forgotten): GONE,
    (EXPIRED, Forgotten): GONE,
    # a success that came after its attempt was given up
    (PENDING, Late): PENDING,
    (RUNNING, Late): RUNNING,
    (DONE, Late): DONE,
    (DEAD, Late): DEAD,
    (CANCELLED, Late): CANCELLED,
    (EXPIRED, Late): EXPIRED,
}
