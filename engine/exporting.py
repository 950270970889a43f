"""Every ticket of a directory, whole, as plain values: its owner may be running.

A page at a time, each of the directory as it is then, so no snapshot stays open for long. Nothing
is held in memory but a page.
"""

from collections.abc import Iterator
from heapq import nlargest
from typing import Any

from parkade.desk import Desk
from parkade.errors import ParkadeError
from parkade.facts import content_of, plain
from parkade.onlooker import Onlooker, Sight
from parkade.reader import Reader
from parkade.reading import DamagedTicket
from parkade.shard.memory import UNREAD
from parkade.shard.states import DEAD, DONE, PENDING, RUNNING
from parkade.shard.ticket import HeadDamage, Ticket, decode_ticket
from parkade.store.disk import Disk
from parkade.store.errors import StoreError
from parkade.store.rows import RowDamaged
from parkade.store.walk import check_reached
from parkade.translating import shard_error

__all__ = ["export_tickets"]

PAGE_TICKETS = 2_000
WITH_PAYLOAD = (PENDING, RUNNING, DEAD)


def export_tickets(
    disk: Disk,
    reader: Reader,
    failures: list[ParkadeError],
    *,
    state: str | None = None,
    task: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Shard by shard, newest first: what `TicketInfo` says, and `content`, the payload or the
    result. A ticket whose rows are damaged is its serial and `damaged`.

    Of a shard that cannot be read, or, when all that can be met are told, whose store stood still
    meanwhile and counts more tickets, the error is added to `failures`; the others go on. Raises
    `ConfigError` where only the owner may look.
    """
    desk = reader.desk("export")
    for number in range(reader.manifest.shards):
        shard = Onlooker(disk, reader.path, reader.manifest.salt, number)
        try:
            yield from _shard(shard, desk, state, task)
        except StoreError as error:
            failures.append(shard_error(reader.path, number, error))
        finally:
            shard.close()


def _shard(
    shard: Onlooker, desk: Desk, state: str | None, task: str | None
) -> Iterator[dict[str, Any]]:
    before, reached = 1 << 64, 0
    commits: set[int] = set()
    while True:
        with shard.sight() as sight:
            commits.add(sight.snapshot.commit)
            stored = sight.snapshot.serials(before=before, limit=PAGE_TICKETS)
            hot = (serial for serial in sight.core.hot if serial < before)
            serials = nlargest(PAGE_TICKETS, {*stored, *nlargest(PAGE_TICKETS, hot)})
            page = [_facts(sight, desk, serial, state, task) for serial in serials]
            reached += sum(serial >= serials[-1] for serial in stored)
            if not serials and len(commits) == 1:
                check_reached(sight.snapshot, "heads", reached)
        yield from (facts for facts in page if facts is not None)
        if not serials:
            return
        before = serials[-1]


def _facts(
    sight: Sight, desk: Desk, serial: int, state: str | None, task: str | None
) -> dict[str, Any] | None:
    try:
        ticket = _ticket(sight, serial)
        if ticket is None or (task is not None and ticket.task != task):
            return None
        facts: dict[str, Any] = plain(desk.shown(ticket))
        if state is not None and facts["state"] != state:
            return None
        body = sight.core.body(serial)
        if body is UNREAD:
            stored = sight.snapshot.body(serial)
            body = None if stored is None else stored.content
        if body is None and ticket.state in WITH_PAYLOAD:
            raise DamagedTicket(serial)
    except (RowDamaged, HeadDamage, DamagedTicket):
        return {"serial": serial, "damaged": True}
    facts["content_is"] = "result" if ticket.state == DONE else "payload"
    facts["content"] = None if body is None else content_of(body)
    return facts


def _ticket(sight: Sight, serial: int) -> Ticket | None:
    ticket = sight.core.look(serial)
    if ticket is not UNREAD:
        return ticket
    head = sight.snapshot.head(serial)
    return None if head is None else decode_ticket(head)
