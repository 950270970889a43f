"""Every rule of the store, broken once: the scenario that it is for must fail.

Each scenario passes as it stands. With its rule broken, by a patch that leaves the rest alone, it
fails: so the rule is in the code, and the scenario would notice if it went missing. The rules are
those of docs/architecture.md, Store, as far as the core keeps them.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kit.rig import SMALL, Rig, codes
from parkade.shard import CANCELLED, DONE, PENDING
from parkade.shard.apply import Applying
from parkade.shard.commands import (
    CONFLICT_REPLACE,
    Answer,
    Cancel,
    Drop,
    Forget,
    Submit,
)
from parkade.shard.generation import Generation
from parkade.shard.memory import UNREAD, Memory
from parkade.shard.placement import Placement
from parkade.shard.ticket import Ticket, decode_ticket
from parkade.shard.unique import unique_name
from parkade.store.record import Late, UniqueClaim

Scenario = Callable[[], None]
Break = Callable[[pytest.MonkeyPatch], None]

WIDE = SMALL._replace(
    wheel_max=1_000, window_max=100, windows_max=1_000, lanes_max=100, waits_window=100
)
HOUR = 3_600_000


def the_checkpoint_holds_the_state_at_its_cut() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.settle_down()
    rig.cut()
    assert rig.pop(rig.lanes()[0]) == serial
    rig.start(serial)
    rig.commit()
    assert decode_ticket(rig.store.heads[serial]).state == PENDING
    rig.complete()
    rig.checked()


def a_ticket_of_the_flight_changed_in_place(patch: pytest.MonkeyPatch) -> None:
    def own(self: Memory, ticket: Ticket) -> Ticket:
        self.dirty.tickets[ticket.serial] = ticket
        return ticket

    patch.setattr(Memory, "own", own)


def what_is_in_flight_is_not_asked_of_the_store() -> None:
    rig = Rig(WIDE)
    serial = rig.submit(HOUR)
    rig.checkpoint()
    assert codes(rig.do(Cancel(serial)).answers) == ["cancelled"]
    rig.cut()
    assert codes(rig.do(Cancel(serial)).answers) == ["too_late"]


def the_store_asked_before_the_flight(patch: pytest.MonkeyPatch) -> None:
    def look(self: Memory, serial: int) -> Any:
        in_flight = self.flight is not None and serial in self.flight.tickets
        return UNREAD if in_flight else self.hot.get(serial, UNREAD)

    patch.setattr(Memory, "look", look)


def what_is_gone_stays_gone_while_the_store_has_it() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial)
    rig.checkpoint()
    assert serial in rig.store.heads and serial not in rig.core.hot
    rig.do(Forget("t", DONE, [serial]))
    assert codes(rig.do(Cancel(serial)).answers) == ["unknown"]
    rig.cut()
    assert codes(rig.do(Cancel(serial)).answers) == ["unknown"]
    rig.commit()
    rig.complete()
    assert codes(rig.do(Cancel(serial)).answers) == ["unknown"]
    rig.checked()


def what_is_gone_stays_gone_in_replay() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial)
    rig.checkpoint()
    rig.do(Forget("t", DONE, [serial]))
    rig.apply(Late(serial, 1))
    live = rig.state()
    rig.reopen()
    assert rig.state() == live and live["tickets"] == {}


def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Memory, "is_gone", lambda self, serial: False)


def a_former_holder_does_not_delete_the_unique_row() -> None:
    rig = Rig(WIDE)
    claim = UniqueClaim("order", 0)
    first = rig.submit(unique=claim)
    rig.run(first)
    rig.settle(first, "failed")
    draft = rig.draft(HOUR, unique=claim)
    assert codes(rig.do(Submit([draft], [CONFLICT_REPLACE])).answers) == ["created"]
    rig.do(Drop([first]))
    again = rig.do(Submit([rig.draft(unique=claim)])).answers
    assert again == [Answer("existing", draft.serial, 7)]


def any_ticket_deletes_the_row_of_its_name(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: Applying, ticket: Ticket) -> None:
        if ticket.unique is not None:
            self.memory.set_row(unique_name(ticket.task, ticket.key, ticket.unique.name), None)

    patch.setattr(Applying, "_give_up_name", give_up)


def a_read_that_a_completion_overtook_is_read_again() -> None:
    rig = Rig(WIDE)
    serial = rig.submit(HOUR)
    rig.checkpoint()
    old = rig.store.load([serial])
    assert codes(rig.do(Cancel(serial)).answers) == ["cancelled"]
    rig.checkpoint()
    verdict = rig.core.decide(Cancel(serial), rig.now_ms, rig.now_ms, old)
    assert verdict.need is not None and verdict.need.serials == [serial]
    assert not rig.core.adopt(old)
    assert codes(rig.do(Cancel(serial)).answers) == ["too_late"]


def an_old_payload_is_not_kept() -> None:
    rig = Rig(WIDE._replace(payload_cache_bytes_max=0))
    serial = rig.submit()
    rig.settle_down()
    rig.checkpoint()
    commit = rig.store.commits
    rig.submit(HOUR)
    rig.checkpoint()
    assert not rig.core.keep_payload(serial, b"old", commit)


def every_read_counts_as_fresh(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Memory, "is_fresh", lambda self, lsn: True)


def a_failed_commit_loses_nothing() -> None:
    rig = Rig(WIDE)
    first, second = rig.submit(HOUR), rig.submit(HOUR)
    rig.cut()
    rig.do(Cancel(second))
    rig.fail_commit()
    rig.checkpoint()
    assert decode_ticket(rig.store.heads[first]).state == PENDING
    assert decode_ticket(rig.store.heads[second]).state == CANCELLED
    rig.checked()


def the_flight_forgotten_when_its_commit_fails(patch: pytest.MonkeyPatch) -> None:
    def merge_back(self: Memory) -> None:
        self.flight = None

    patch.setattr(Memory, "merge_back", merge_back)


def the_flight_over_what_is_newer(patch: pytest.MonkeyPatch) -> None:
    under = Generation.under
    patch.setattr(Generation, "under", lambda self, newer: under(newer, self))


def a_read_that_was_dropped_twice_holds_the_next_completion() -> None:
    rig = Rig(WIDE)
    for _ in range(2):
        rig.begin_sweep()
        rig.submit(HOUR)
        rig.checkpoint()
        assert rig.end_reads() == [False]
    assert rig.begin_sweep()
    assert rig.core.placement.hold_completion
    assert rig.end_reads() == [True]
    assert not rig.core.placement.hold_completion


def no_completion_is_ever_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "hold_completion", False)


RULES: list[tuple[Scenario, Break]] = [
    (the_checkpoint_holds_the_state_at_its_cut, a_ticket_of_the_flight_changed_in_place),
    (what_is_in_flight_is_not_asked_of_the_store, the_store_asked_before_the_flight),
    (what_is_gone_stays_gone_while_the_store_has_it, no_tombstones),
    (what_is_gone_stays_gone_in_replay, no_tombstones),
    (a_former_holder_does_not_delete_the_unique_row, any_ticket_deletes_the_row_of_its_name),
    (a_read_that_a_completion_overtook_is_read_again, every_read_counts_as_fresh),
    (an_old_payload_is_not_kept, every_read_counts_as_fresh),
    (a_read_that_was_dropped_twice_holds_the_next_completion, no_completion_is_ever_held),
    (a_failed_commit_loses_nothing, the_flight_forgotten_when_its_commit_fails),
    (a_failed_commit_loses_nothing, the_flight_over_what_is_newer),
]


def name_of(function: Callable[..., None]) -> str:
    return function.__name__


@pytest.mark.parametrize("scenario", dict.fromkeys(rule[0] for rule in RULES), ids=name_of)
def test_a_rule_that_is_kept_lets_its_scenario_pass(scenario: Scenario) -> None:
    scenario()


@pytest.mark.parametrize(("scenario", "breaks"), RULES, ids=name_of)
def test_a_rule_that_is_broken_is_noticed(
    scenario: Scenario, breaks: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        scenario()
