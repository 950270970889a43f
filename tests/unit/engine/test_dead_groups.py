"""Groups of dead letters: who is in which, counted from an index, and bulk calls by group."""

import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.engines import checkpoint, make, walk
from parkade import (
    ConfigError,
    DeadGroup,
    Engine,
    Fail,
    NaiveDatetime,
    PayloadError,
    Task,
    TicketFailed,
    UnknownTask,
    open_readonly,
)
from parkade.testing import Killed, TestEngine


def office(engine: Engine) -> "Task[Any, Any]":
    """A task that dies of what it is told; `ok` is done."""

    @engine.task(retry=None)
    def work(how: str) -> str:
        if how == "ok":
            return how
        name, _, text = how.partition(": ")
        raise {"OSError": OSError, "Fail": Fail}[name](text)

    return work


def die(task: "Task[Any, Any]", *hows: str) -> list[str]:
    tickets = [task.submit(how) for how in hows]
    for ticket in tickets:
        with pytest.raises(TicketFailed):
            ticket.result("20s")
    return [ticket.id for ticket in tickets]


def told(groups: Sequence[DeadGroup]) -> list[tuple[str, str, str, int]]:
    return [(group.task, group.error_type, group.sample, group.count) for group in groups]


@pytest.mark.parametrize("is_parked", [False, True])
def test_groups_are_by_task_error_and_shape_the_largest_first(
    tmp_path: Path, is_parked: bool
) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        for n in range(5):  # one after the other: the sample is of who died last
            die(work, f"OSError: no route to 10.0.0.{n}")
        die(work, "Fail: no route to 10.0.0.1", "OSError: user 'anna' is gone")
        die(work, "OSError: user 'bert' is gone")
        if is_parked:
            checkpoint(engine)
        groups = engine.dead.groups()
        assert told(groups) == [
            ("work", "OSError", "no route to 10.0.0.4", 5),
            ("work", "OSError", "user 'bert' is gone", 2),
            ("work", "Fail", "no route to 10.0.0.1", 1),
        ]
        assert told(engine.dead.groups(limit=1)) == told(groups[:1])
        for group in groups:
            found = walk(engine.dead.find, group=group.key, limit=2)
            assert len(found) == group.count
            assert {info.task for info in found} == {group.task}
            ends = sorted(info.finished_at for info in found if info.finished_at)
            assert ends[0] <= group.first_at <= group.last_at <= ends[-1]


def test_what_is_brought_back_resolved_or_dropped_leaves_its_group(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        ids = [one for n in range(8) for one in die(work, f"OSError: {n} is bad")]
        checkpoint(engine)
        engine.dead.revive(ids[0], delay="1h")
        engine.dead.resolve(ids[1], "ok")
        engine.dead.drop(ids[7])
        (group,) = engine.dead.groups()
        assert (group.count, group.sample) == (5, "6 is bad")
        checkpoint(engine)
        assert engine.dead.groups() == [group]
        assert engine.dead.drop(group=group.key).changed == 5
        assert engine.dead.groups() == []
        checkpoint(engine)
        assert engine.dead.groups() == []


def test_a_ticket_that_dies_otherwise_the_second_time_changes_its_group(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        (ticket_id,) = die(work, "OSError: x")
        checkpoint(engine)
        engine.dead.revive(ticket_id, payload={"how": "Fail: y"})
        with pytest.raises(TicketFailed):
            work.ticket(ticket_id).result("20s")
        assert told(engine.dead.groups()) == [("work", "Fail", "y", 1)]
        checkpoint(engine)
        assert told(engine.dead.groups()) == [("work", "Fail", "y", 1)]


def test_one_group_is_brought_back_and_the_others_stay(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        die(work, "OSError: a", "OSError: a", "OSError: b")
        key = engine.dead.groups()[0].key
        plan = engine.dead.revive(group=key, delay="1h", dry_run=True)
        assert (plan.matched, plan.changed, engine.dead.count()) == (2, 2, 3)
        assert engine.dead.revive(group=key, delay="1h") == plan
        assert told(engine.dead.groups()) == [("work", "OSError", "b", 1)]


def test_a_rate_gives_each_a_turn_and_the_oldest_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.dead_bulk.BULK_PAGE", 7)
    with make(tmp_path / "data") as engine:
        work = office(engine)
        ids = die(work, *["OSError: a"] * 40)
        key = engine.dead.groups()[0].key
        assert engine.dead.revive(group=key, delay="1h", rate=(20, "1s")).changed == 40
        dues = [engine.ticket(each).info().due_at for each in ids]
        assert dues == sorted(dues)
        steps = {later - earlier for earlier, later in itertools.pairwise(dues)}
        assert steps == {timedelta(milliseconds=50)}, "20 in each second"


def test_a_call_that_was_cut_off_goes_on_without_crowding_those_that_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.dead_bulk.BULK_PAGE", 7)
    with make(tmp_path / "data") as engine:
        work = office(engine)
        ids = die(work, *["OSError: a"] * 40)
        desk = engine.desk("test")
        asked: list[str] = []
        ask = type(desk).ask

        def cut_off(self: Any, request: Any, timeout_ms: int | None = None) -> Any:
            asked.append(request.call)
            if asked.count("engine.dead.revive") > 6:
                raise KeyboardInterrupt
            return ask(self, request, timeout_ms)

        with monkeypatch.context() as patch:
            patch.setattr(type(desk), "ask", cut_off)
            with pytest.raises(KeyboardInterrupt):
                engine.dead.revive(task="work", delay="1h", rate=(1, "10s"))
        left = engine.dead.count()
        assert 0 < left < 40 and left % 7 == 40 % 7, "whole pages were done"
        assert engine.dead.revive(task="work", delay="1h", rate=(1, "10s")).changed == left
        dues = sorted(engine.ticket(each).info().due_at for each in ids)
        assert all(b - a >= timedelta(seconds=9) for a, b in itertools.pairwise(dues))


def test_ids_take_their_turns_in_the_order_they_are_given(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        first, second, third = die(work, *["OSError: a"] * 3)
        assert engine.dead.revive(third, first, second, rate=(1, "1h"), delay="1h").changed == 3
        dues = [engine.ticket(each).info().due_at for each in (third, first, second)]
        assert dues[1] - dues[0] == dues[2] - dues[1] == timedelta(hours=1)


def test_other_arguments_are_held_against_the_handler(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        ids = die(work, "OSError: a", "OSError: a", "OSError: a")
        for payload in ({"how": 7}, {"who": "x"}, {}, {"how": "x" * 2_000_000}):
            with pytest.raises(PayloadError, match="work"):
                engine.dead.revive(ids[0], payload=payload)
        assert engine.dead.count() == 3
        plan = engine.dead.revive(*ids, "unheard-of", payload={"how": "ok"}, dry_run=True)
        assert (plan.changed, plan.skipped, engine.dead.count()) == (3, {"unknown": 1}, 3)
        assert engine.dead.revive(ids[0], payload={"how": "ok"}).changed == 1
        assert engine.dead.revive(task="work", payload={"how": "ok"}).changed == 2
        assert [work.ticket(each).result("20s") for each in ids] == ["ok"] * 3


def test_other_arguments_for_a_task_that_no_code_registers_are_refused(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        (ticket_id,) = die(office(engine), "OSError: a")
    with make(tmp_path / "data", durability="process") as engine:
        for ids, task in (((ticket_id,), None), ((), "work")):
            with pytest.raises(UnknownTask, match='"work"'):
                engine.dead.revive(*ids, task=task, payload={"how": "ok"})
        assert engine.dead.count() == 1


def test_large_arguments_go_in_commands_of_bounded_size(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=True) as engine:
        work = office(engine)
        ids = die(work, *["OSError: a"] * 30)
        how = "OSError: " + "x" * 50_000
        assert engine.dead.revive(task="work", delay="1h", payload={"how": how}).changed == 30
        assert all(engine.ticket(each).info().state == "scheduled" for each in ids)


def test_a_dead_ticket_whose_name_another_holds_stays_dead(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine)
        named = work.options(unique="a", unique_for="active")
        ticket = named.submit("OSError: a")
        with pytest.raises(TicketFailed):
            ticket.result("20s")
        assert named.options(delay="1h").submit("ok").created
        plan = engine.dead.revive(task="work", dry_run=True)
        assert (plan.matched, plan.changed, plan.skipped) == (1, 0, {"duplicate": 1})
        assert engine.dead.revive(task="work") == plan
        assert engine.dead.count() == 1


def test_what_died_without_an_error_says_of_what() -> None:
    with TestEngine() as engine:

        @engine.task(on_crash="ambiguous")
        def charge() -> None:
            raise Killed

        charge.submit()
        with pytest.raises(Killed):
            engine.run_until_idle()
        [group] = engine.crash().dead.groups()
        assert (group.error_type, group.count) == ("", 1)
        assert group.sample == "cut off when its process ended: it may have happened"


def test_the_dead_are_found_by_when_they_died() -> None:
    with TestEngine() as engine:
        work = office(engine)
        ids = [work.submit("OSError: a").id]
        engine.run_until_idle()
        engine.clock.advance("1s")
        ids.append(work.submit("OSError: b").id)
        engine.run_until_idle()
        first, second = (engine.ticket(each).info().finished_at for each in ids)
        assert first is not None and second is not None and first < second

        def found(**asked: Any) -> list[str]:
            return [info.id for info in walk(engine.dead.find, **asked)]

        assert found(since=second) == ids[1:]
        assert found(until=second) == ids[:1], "until is not included"
        assert found(since=first, until=second + timedelta(seconds=1)) == ids[::-1]
        with pytest.raises(NaiveDatetime):
            engine.dead.find(since=first.replace(tzinfo=None))


def test_bad_rates_and_limits_are_refused(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        bad: list[Any] = [(0, "1s"), (1, 0), (1.5, "1s"), 50, (True, "1s"), (1, "soon"), (1,)]
        for rate in bad:
            with pytest.raises(ConfigError):
                engine.dead.revive("x", rate=rate)
        for limit in (0, 1_001, True):
            with pytest.raises(ConfigError, match="limit"):
                engine.dead.groups(limit=limit)


def test_a_reader_finds_counts_groups_and_plans_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path, durability="process") as engine:
        die(office(engine), "OSError: a", "OSError: a", "Fail: b")
        groups = engine.dead.groups()
    with open_readonly(path) as reader:
        assert reader.dead.groups() == groups
        assert reader.dead.count(task="work") == 3
        assert len(reader.dead.find(group=groups[0].key).items) == 2
        plan = reader.dead.revive(group=groups[0].key, dry_run=True)
        assert (plan.matched, plan.changed) == (2, 2)
        with pytest.raises(ConfigError, match="changes nothing"):
            reader.dead.revive(group=groups[0].key)
        with pytest.raises(UnknownTask):
            reader.dead.revive(group=groups[0].key, payload={}, dry_run=True)


def test_many_groups_are_counted_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parkade.dead_groups.GROUPS_SLICE", 3)
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
    with make(tmp_path / "data") as engine:
        work = office(engine)
        hows = [f"OSError: {word}" for n, word in enumerate(words) for _ in range(n % 3 + 1)]
        die(work, *hows)
        checkpoint(engine)
        engine.dead.drop(*die(work, "OSError: z"))
        die(work, "OSError: b", "OSError: y")
        counts = {group.sample: group.count for group in engine.dead.groups()}
        wanted = Counter(how.removeprefix("OSError: ") for how in [*hows, "OSError: b"])
        assert counts == wanted | {"y": 1}
