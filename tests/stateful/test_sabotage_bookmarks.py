"""Every rule of what attempts save, broken once: its law notices (docs/semantics.md, Progress and
bookmarks)."""

from typing import Any

import pytest

from kit.laws import Rule, check_broken, check_kept, name_of, steps
from kit.stepped import Stepped
from parkade.shard.apply import Applying
from parkade.shard.commands import Bookmark
from parkade.shard.core import Shard
from parkade.shard.generation import Generation
from parkade.shard.memory import Memory
from parkade.shard_host import ShardHost
from parkade.store.record import Bookmarked


def begin(shard: Stepped) -> int:
    """A ticket that runs."""
    draft = shard.draft()
    shard.submit(draft)
    shard.run()
    assert draft.serial in shard.handlers.alive
    return draft.serial


def save(shard: Stepped, serial: int, value: bytes) -> None:
    shard.ask(Bookmark(serial, 1, value), size=len(value))
    shard.run()
    assert shard.answers[-1][1][0].code == "saved"


def saved(shard: Stepped, serial: int) -> bytes | None:
    return shard.witness.tickets[serial].bookmark


# ------------------------------------------------------------------------------------- saved


def what_is_answered_as_saved_outlives_the_power(shard: Stepped) -> None:
    serial = begin(shard)
    shard.ask(Bookmark(serial, 1, b"one"))
    steps(shard, "turn")
    was_told = any(isinstance(asked, Bookmark) for asked, _ in shard.answers)
    shard.crash("lost")
    assert not was_told or saved(shard, serial) == b"one"


def answers_that_do_not_wait(patch: pytest.MonkeyPatch, kind: type = Bookmark) -> None:
    hold = ShardHost.hold

    def held(self: ShardHost, ask: Any, value: Any) -> None:
        if isinstance(ask.asked, kind):
            self._release(ask, value)
        else:
            hold(self, ask, value)

    patch.setattr(ShardHost, "hold", held)


def the_latest_value_is_the_one_that_stays(shard: Stepped) -> None:
    serial = begin(shard)
    save(shard, serial, b"one")
    shard.want_checkpoint()
    steps(shard, "turn")  # the cut: this value is in flight
    save(shard, serial, b"two")
    shard.fail_commit("tickets")
    shard.checkpoint()
    shard.crash("lost")
    assert saved(shard, serial) == b"two"


def the_flight_before_what_changed_since(patch: pytest.MonkeyPatch) -> None:
    def bookmark(self: Memory, serial: int) -> Any:
        for generation in (self.flight, self.dirty):
            if generation is not None and serial in generation.bookmarks:
                return generation.bookmarks[serial]
        return original(self, serial)

    original = Memory.bookmark
    patch.setattr(Memory, "bookmark", bookmark)


def a_value_outlives_a_commit_that_fails(shard: Stepped) -> None:
    serial = begin(shard)
    save(shard, serial, b"one")
    shard.want_checkpoint()
    shard.fail_commit("tickets", 28)  # no space left
    for _ in range(6):
        steps(shard, "turn, writer, hear writer")
    assert saved(shard, serial) == b"one"
    shard.check()
    shard.run()


def a_merge_without_it(patch: pytest.MonkeyPatch) -> None:
    under = Generation.under

    def merged(self: Generation, newer: Generation) -> Generation:
        both = under(self, newer)
        both.bookmarks = dict(newer.bookmarks)
        return both

    patch.setattr(Generation, "under", merged)


# ------------------------------------------------------------------------------------- whose


def an_attempt_that_was_given_up_saves_nothing(shard: Stepped) -> None:
    serial = begin(shard)
    save(shard, serial, b"mine")
    shard.settle(shard.handlers.alive[serial], "timeout", wait_ms=1)
    shard.run()
    shard.pass_ms(5)
    shard.run()
    assert shard.handlers.alive[serial].fence == 2
    shard.ask(Bookmark(serial, 1, b"not mine"))
    shard.run()
    assert shard.answers[-1][1][0].code == "refused"
    assert saved(shard, serial) == b"mine"


def any_fence_will_do(patch: pytest.MonkeyPatch) -> None:
    decide = Shard.decide

    def decided(self: Shard, command: Any, now_ms: int, *rest: Any) -> Any:
        if isinstance(command, Bookmark) and command.serial in self.hot:
            fence = self.hot[command.serial].fence
            command = Bookmark(command.serial, fence, command.value, command.progress)
        return decide(self, command, now_ms, *rest)

    patch.setattr(Shard, "decide", decided)


# ------------------------------------------------------------------------------------ how long


def what_was_saved_goes_with_the_end(shard: Stepped) -> None:
    serial = begin(shard)
    save(shard, serial, b"one")
    shard.checkpoint()
    shard.settle(shard.handlers.alive[serial])
    shard.run()
    shard.checkpoint()
    assert saved(shard, serial) is None


def rows_that_nobody_deletes(patch: pytest.MonkeyPatch) -> None:
    set_bookmark = Memory.set_bookmark

    def kept(self: Memory, serial: int, value: bytes | None) -> None:
        if value is not None:
            set_bookmark(self, serial, value)

    patch.setattr(Memory, "set_bookmark", kept)


def a_replay_gives_the_same(shard: Stepped) -> None:
    serial = begin(shard)
    save(shard, serial, b"one")
    shard.kill()
    assert saved(shard, serial) == b"one"


def a_replay_that_passes_it_over(patch: pytest.MonkeyPatch) -> None:
    apply, lives = Applying._bookmarked, [0]

    def applied(self: Applying, record: Bookmarked) -> None:
        lives[0] += 1
        if lives[0] == 1:
            apply(self, record)

    patch.setattr(Applying, "_bookmarked", applied)


RULES = [
    Rule("saved", what_is_answered_as_saved_outlives_the_power, answers_that_do_not_wait),
    Rule("saved", the_latest_value_is_the_one_that_stays, the_flight_before_what_changed_since),
    Rule("saved", a_value_outlives_a_commit_that_fails, a_merge_without_it),
    Rule("whose", an_attempt_that_was_given_up_saves_nothing, any_fence_will_do),
    Rule("how long", what_was_saved_goes_with_the_end, rows_that_nobody_deletes),
    Rule("replay", a_replay_gives_the_same, a_replay_that_passes_it_over),
]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_kept_lets_its_law_hold(rule: Rule) -> None:
    check_kept(rule)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_broken_is_noticed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    check_broken(rule, monkeypatch)
