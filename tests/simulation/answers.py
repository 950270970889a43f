"""What an answer may say: the truth of one moment since it was asked for, and durable."""

from typing import TYPE_CHECKING, Any

from kit.witness import fields_of, without_progress
from parkade.asks import AwaitEnd, Inquiry, Look, PageOf, Seen
from parkade.errors import ParkadeError
from parkade.shard.commands import Command

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["check_answer"]


def check_answer(
    world: "World",
    number: int,
    asked: Command | Inquiry,
    value: Any,
    error: BaseException | None,
    since: int,
) -> None:
    """A shard answers what it was asked when it was at the LSN `since`."""
    world.counts["answers"] += 1
    if error is not None:
        assert isinstance(error, ParkadeError), (asked, error)
        world.counts["errors answered"] += 1
        world.rot.check_error(number, error)
    elif isinstance(asked, Command):
        created = [answer for answer in value if answer.code == "created"]
        world.known |= {answer.serial: answer.part for answer in created}
    elif isinstance(asked, Look | AwaitEnd):
        _check_seen(world, number, asked, value, since)
    else:
        assert isinstance(asked, PageOf)


def _check_seen(
    world: "World", number: int, asked: Look | AwaitEnd, value: Seen | None, since: int
) -> None:
    witness = world.witnesses[number]
    head = None if value is None else without_progress(fields_of(value.ticket))
    # The id of a child that was not made answers as whoever had its name.
    serial = asked.serial if value is None else value.ticket.serial
    assert serial == asked.serial or world.is_alias(number, asked.serial, serial)
    until = world.host(number).durable_lsn
    seen = witness.was_seen(serial, head, min(since, until), until)
    assert seen, ("as it was at no time since", asked, value, since, until)
    if value is not None and (isinstance(asked, AwaitEnd) or asked.wants_body):
        shadows = witness.versions[serial]
        bodies = [s.body for _, s in shadows if s and without_progress(s.head) == head]
        assert value.body in bodies, ("head and body of one moment", value)
