"""What happens is told to who listens: in order, once it is durable, and never at others' cost."""

import asyncio
import gc
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kit.engines import PATIENCE_S, make, runtime_of
from parkade import (
    BlockingInEventLoop,
    Breaker,
    ConfigError,
    Drop,
    Engine,
    EngineClosed,
    Event,
    Fail,
    Snooze,
)
from parkade.events import DONE, SUBMITTED, Note, event_of
from parkade.feed import BLOCK_EVENTS, RING_EVENTS, Feed
from parkade.subscription import Subscription
from parkade.testing import TestEngine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with make(tmp_path / "data") as engine:
        yield engine


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


def taken(subscription: Subscription, count: int) -> list[Event]:
    """So many events, as soon as they are there."""
    return list(islice(subscription, count))


# --------------------------------------------------------------------------------- what is told


def test_every_turn_of_a_ticket_s_life_is_an_event(parkade_engine: TestEngine) -> None:
    engine = parkade_engine

    @engine.task(retry=["1m"])
    def life(how: str) -> str:
        match how:
            case "flaky":
                raise OSError("no route")
            case "bad":
                raise Fail("gone")
            case "drop":
                raise Drop("left")
        return how

    subscription = engine.events()
    expected = {
        "fine": ["submitted", "started", "done"],
        "flaky": ["submitted", "started", "retrying", "started", "dead"],
        "bad": ["submitted", "started", "dead"],
        "drop": ["submitted", "started", "cancelled"],
    }
    tickets = {how: life.submit(how) for how in expected}
    expiring = life.options(delay="1h", expires="1m").submit("fine")
    cancelled = life.options(delay="3d").submit("fine")
    cancelled.cancel("changed my mind")
    engine.pause(task="life")
    engine.clock.advance("2h")
    engine.resume(task="life")
    engine.run_until_idle(skip_time=True)
    engine.dead.revive(tickets["bad"].id, delay="1d")
    heard = list(subscription)
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
    for how, ticket in tickets.items():
        told = kinds([event for event in heard if event.ticket_id == ticket.id])
        assert told == expected[how] + (["revived"] if how == "bad" else [])
    by_id = {ticket: [e for e in heard if e.ticket_id == ticket.id] for ticket in (expiring,)}
    assert kinds(by_id[expiring]) == ["submitted", "expired"]
    assert kinds([e for e in heard if e.ticket_id == cancelled.id]) == ["submitted", "cancelled"]
    assert kinds([e for e in heard if e.ticket_id is None]) == ["paused", "resumed"]
    assert {event.task for event in heard} == {"life"}


def test_an_event_holds_a_few_plain_values_by_its_kind(parkade_engine: TestEngine) -> None:
    engine = parkade_engine
    begun = engine.clock.now()

    @engine.task(retry=["1m"])
    def flaky(secret: str) -> None:
        raise OSError("no route to " + "host" * 1_000)

    @engine.task(max_snoozes=2)
    def sleepy() -> None:
        raise Snooze("1h", "not yet")

    with engine.events() as subscription:
        flaky.submit("payload")
        engine.run_until_idle(skip_time=True)
        submitted, started, retrying, again, dead = subscription
    assert submitted.at == begun
    assert submitted.data == {"due_at": begun}
    assert (started.data, again.data) == ({"attempt": 1}, {"attempt": 2})
    assert retrying.data["attempt"] == 1
    assert retrying.data["reason"] == "failed"
    assert retrying.data["error_type"] == "OSError"
    assert retrying.data["error"].startswith("no route to host")
    assert len(retrying.data["error"]) == 200, "it is cut: the ticket has it whole"
    assert retrying.data["due_at"] == again.at
    assert (dead.data["reason"], dead.data["attempt"]) == ("exhausted", 2)
    with engine.events("snoozed", "dead") as subscription:
        sleepy.submit()
        engine.run_until_idle(skip_time=True)
        first, second, dead = subscription
    assert first.data["reason"] == "not yet"
    assert second.at == first.data["due_at"]
    assert dead.data["reason"] == "exhausted"


def test_what_a_person_does_with_the_dead_is_told_too(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def bad() -> int:
        raise Fail("gone")

    ticket = bad.submit()
    parkade_engine.run_until_idle()
    with parkade_engine.events() as subscription:
        parkade_engine.dead.resolve(ticket.id, 7)
        (done,) = subscription
    assert (done.kind, done.data, done.ticket_id) == ("done", {"note": ""}, ticket.id)


def test_breakers_and_pauses_are_told_when_they_are_durable(engine: Engine) -> None:
    @engine.task(target="psp", breaker=Breaker("psp", failures=1, open_for="5m"), retry=1)
    def pay() -> None:
        raise OSError("down")

    with engine.events("breaker_open", "breaker_closed", "paused", "resumed") as events:
        engine.resume(task="pay")
        engine.breakers.close("psp")
        pay.submit()
        (opened,) = taken(events, 1)
        assert opened.data["breaker"] == "psp"
        assert "OSError" in opened.data["reason"]
        assert opened.data["until"] > opened.at
        assert (opened.ticket_id, opened.task) == (None, None)
        engine.breakers.close("psp")
        engine.breakers.force_open("psp", reason="their maintenance")
        engine.pause(target="psp", reason="so they say")
        closed, forced, paused = taken(events, 3)
    assert (closed.kind, closed.data) == ("breaker_closed", {"breaker": "psp"})
    assert (forced.data["until"], forced.data["reason"]) == (None, "their maintenance")
    assert paused.data == {"scope": "target:psp", "reason": "so they say", "until": None}


def test_nothing_is_told_before_it_is_durable(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=1) as engine:
        task = engine.task(name="note")(lambda n: n)
        shard = runtime_of(engine).shards[0]
        feed = runtime_of(engine).host.feed
        told: list[tuple[int, int]] = []
        told_at_publish = feed.publish

        def publish(notes: Sequence[Note], numbered: int = 0) -> None:
            told.append((shard.durable_lsn, len(notes)))
            told_at_publish(notes, numbered)

        feed.publish = publish  # type: ignore[method-assign]
        ticket = task.submit(1)
        assert ticket.result("20s") == 1
        total = 0
        for durable_lsn, count in told:
            total += count
            assert total <= durable_lsn, "one record, one event here"
        assert total == 3


# --------------------------------------------------------------------------------- who listens


def test_a_subscription_hears_the_kinds_and_the_task_it_asked_for(engine: Engine) -> None:
    one = engine.task(name="one", aliases=("uno",))(lambda n: n)
    two = engine.task(name="two")(lambda n: n)
    done, of_two, everything = engine.events("done"), engine.events(task="two"), engine.events()
    for n in range(3):
        one.submit(n).result("20s")
        two.submit(n).result("20s")
    assert kinds(taken(done, 6)) == ["done"] * 6
    assert {event.task for event in taken(of_two, 9)} == {"two"}
    assert [event.seq for event in taken(everything, 18)] == list(range(1, 19))
    assert (done.dropped, of_two.dropped, everything.dropped) == (0, 0, 0)


def test_events_are_replayed_from_the_ring_and_go_on_without_a_gap(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    later = task.options(delay="1h")
    engine.submit_many([later.call(n) for n in range(2_500)])
    heard: list[int] = []
    count = 5_000

    def listen() -> None:
        subscription = engine.events("submitted", since=100)
        heard.extend(event.seq for event in taken(subscription, count - 100))

    listening = threading.Thread(target=listen)
    listening.start()
    for _ in range(5):
        engine.submit_many([later.call(n) for n in range(500)])
    listening.join(PATIENCE_S)
    assert heard == list(range(101, count + 1))


def test_a_number_of_an_earlier_open_replays_all_there_is(tmp_path: Path) -> None:
    for _ in range(2):
        with make(tmp_path / "data") as engine:
            task = engine.task(name="note")(lambda n: n)
            task.options(delay="1h").submit(1)
            with engine.events("submitted", since=1_000_000) as events:
                assert [event.seq for event in taken(events, 1)] == [1]
            with engine.events("submitted", since=1) as events:
                task.options(delay="1h").submit(2)
                assert [event.seq for event in taken(events, 1)] == [2]


def test_a_slow_listener_loses_the_oldest_and_is_told_how_many(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    slow, quick = engine.events(buffer=10), engine.events()
    engine.submit_many([task.options(delay="1h").call(n) for n in range(1_000)])
    assert [event.seq for event in taken(quick, 1_000)] == list(range(1, 1_001))
    assert slow.dropped == 990
    assert [event.seq for event in taken(slow, 10)] == list(range(991, 1_001))
    task.options(delay="1h").submit(1)
    assert [event.seq for event in taken(slow, 1)] == [1_001]
    assert slow.dropped == 990


def test_listeners_on_threads_and_loops_hear_the_same(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    count = 300
    heard: dict[str, list[int]] = {"thread": [], "loop": [], "other loop": []}
    ready = threading.Barrier(4)

    def listen() -> None:
        with engine.events() as events:
            ready.wait(PATIENCE_S)
            heard["thread"] += [event.seq for event in taken(events, count)]

    async def alisten(name: str) -> None:
        with engine.events() as events:
            await asyncio.to_thread(ready.wait, PATIENCE_S)
            async for event in events:
                heard[name].append(event.seq)
                if len(heard[name]) == count:
                    return

    names = ("loop", "other loop")
    threads = [threading.Thread(target=listen)]
    threads += [threading.Thread(target=lambda n=name: asyncio.run(alisten(n))) for name in names]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE_S)
    for n in range(count // 3):
        task.submit(n)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == {name: list(range(1, count + 1)) for name in heard}


def test_several_iterations_of_one_subscription_share_the_events(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    events = engine.events("submitted")
    heard: list[int] = []
    threads = [
        threading.Thread(target=lambda: heard.extend(event.seq for event in events))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for n in range(200):
        task.options(delay="1h").submit(n)
    engine.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(heard) == list(range(1, 201))


def test_iteration_ends_with_the_engine_when_all_is_taken(tmp_path: Path) -> None:
    engine = make(tmp_path / "data").start()
    task = engine.task(name="note")(lambda n: n)
    events, waiting = engine.events(), engine.events("dead")
    ended = threading.Event()

    def listen() -> None:
        for _ in waiting:
            raise AssertionError("nothing died")
        ended.set()

    threading.Thread(target=listen).start()
    assert task.submit(1).result("20s") == 1
    engine.stop()
    assert ended.wait(PATIENCE_S)
    assert kinds(list(events)) == ["submitted", "started", "done"]
    assert list(events) == []
    with pytest.raises(EngineClosed):
        engine.events()


def test_a_closed_subscription_ends_who_waits_for_it(engine: Engine) -> None:
    events = engine.events()
    ended: list[str] = []

    def listen() -> None:
        ended.extend(event.kind for event in events)
        ended.append("thread")

    async def alisten() -> None:
        task = asyncio.create_task(anext(aiter(events), None))
        await asyncio.sleep(0)
        events.close()
        assert await task is None
        ended.append("loop")

    thread = threading.Thread(target=listen)
    thread.start()
    asyncio.run(alisten())
    thread.join(PATIENCE_S)
    assert sorted(ended) == ["loop", "thread"]
    events.close()


def test_a_subscription_that_nobody_holds_is_forgotten(engine: Engine) -> None:
    feed = runtime_of(engine).host.feed
    task = engine.task(name="note")(lambda n: n)
    for _ in range(10):
        engine.events()
    gc.collect()
    kept = engine.events()
    assert len(vars(feed)["_listening"]) == 1
    task.options(delay="1h").submit(1)
    assert len(taken(kept, 1)) == 1


def test_a_listener_whose_loop_has_closed_costs_nobody_anything(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    events = engine.events()

    async def give_up() -> None:
        waiting = asyncio.create_task(anext(aiter(events)))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up())
    assert task.submit(1).result("20s") == 1
    assert kinds(taken(events, 3)) == ["submitted", "started", "done"]


def test_what_cannot_be_listened_for_is_refused(engine: Engine) -> None:
    bad: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        (("finished",), {}, "one of submitted.*, resumed \\["),
        (("retryin",), {}, '"retrying"'),
        (("scheduled_tick",), {}, "no schedules"),
        ((), {"since": -1}, "since"),
        ((), {"buffer": 0}, "buffer"),
        ((), {"task": ""}, "task"),
    ]
    for asked, options, text in bad:
        with pytest.raises(ConfigError, match=text):
            engine.events(*asked, **options)  # type: ignore[arg-type]

    async def blocks() -> None:
        for _ in engine.events():
            raise AssertionError("there is nothing to hear")

    with pytest.raises(BlockingInEventLoop, match="async for"):
        asyncio.run(blocks())


# -------------------------------------------------------------------------------------- the ring


def note(n: int, kind: int = SUBMITTED) -> Note:
    return (kind, 1_700_000_000_000, 1 + n, n % 65_536, "note", n)


def test_the_ring_keeps_the_last_events_in_order_and_no_more_than_it_may() -> None:
    feed = Feed()
    sizes = [1, 7, BLOCK_EVENTS, 3 * BLOCK_EVENTS + 5, 999]
    made = 0
    while made < RING_EVENTS + 20_000:
        size = sizes[made % len(sizes)]
        feed.publish([note(n) for n in range(made, made + size)])
        made += size
    assert feed.last == made
    first, entries = feed.after(0)
    found = list(entries)
    assert [seq for seq, _ in found] == list(range(first, made + 1))
    assert RING_EVENTS <= len(found) <= RING_EVENTS + 4 * BLOCK_EVENTS
    assert all(kept == note(seq - 1) for seq, kept in found)
    since = made - 1_234
    assert [seq for seq, _ in feed.after(since)[1]] == list(range(since + 1, made + 1))
    assert list(feed.after(made)[1]) == []


def test_what_the_ring_no_longer_has_counts_as_dropped() -> None:
    feed = Feed()
    for begin in range(0, RING_EVENTS + 5_000, BLOCK_EVENTS):
        feed.publish([note(n, DONE) for n in range(begin, begin + BLOCK_EVENTS)])
    first, _ = feed.after(0)
    subscription = Subscription(
        feed, lambda *_: "id", kinds=frozenset((DONE,)), tasks=None, size_max=10,
        is_alone=lambda: True,
    ).begin(since=2_000)  # fmt: skip
    assert subscription.dropped == first - 1 - 2_000 > 0
    assert next(iter(subscription)).seq == first


def test_a_note_of_the_ring_makes_the_event_that_a_fresh_one_makes() -> None:
    feed = Feed()
    detail = (3, 1_700_000_060_000, "failed", "OSError", "no route")
    fresh: Note = (3, 1_700_000_000_000, (1 << 63) + 5, 65_535, "påminn", detail)
    feed.publish([fresh] * BLOCK_EVENTS)
    (_, packed), *_ = feed.after(0)[1]
    assert packed is not fresh
    assert event_of(1, packed, lambda *_: "id") == event_of(1, fresh, lambda *_: "id")
