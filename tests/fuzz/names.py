"""Text that callers give: ids, cursors, keys, uniques, tags, names of tasks, scopes, durations."""

import atexit
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from fuzz.mutations import LONG_CHARS, mutate_bytes, odd_value
from fuzz.tape import Tape
from kit.engines import runtime_of
from parkade import ParkadeError
from parkade.control_desk import control_handlers
from parkade.testing import TestEngine

__all__ = ["answers", "target"]

WORDS = (
    "", "note", "Note", "x", "\0", "\ud800", "\udcff", "a\nb", "\x1b[31m", "é" * 300, "x" * 300,
    "x" * LONG_CHARS,  "task:note", "target:", "5m", "1e9y", "-1", "0", "f" * 16, "nan",
    "1" * 20, "*", "%s", "{n}", "{n.__class__}", "../..", "38q04gwkj0001vzssm3jsp32",
)  # fmt: skip
FIELDS = (
    "id", "ids", "task", "state", "limit", "cursor", "scope", "payload", "key", "tag", "delay",
    "at", "options", "name", "group", "reason", "kinds", "since", "until", "unique", "rate",
    "result", "note", "dry_run", "target",
)  # fmt: skip
CALLS_MAX = 6


@functools.cache
def engine() -> TestEngine:
    """One for all inputs: it must be as good after each as before."""
    made = TestEngine(shards=2)
    made.task(name="note")(_note)
    made.start()
    atexit.register(made.stop)
    return made


def _note(n: int = 0, text: str = "") -> int:
    return n


def target(data: bytes) -> None:
    """Some calls with words that may be wrong; then an ordinary one."""
    tape = Tape(data)
    for _ in range(1 + tape.below(CALLS_MAX)):
        refusable(functools.partial(tape.pick(CALLS), tape))
    is_well()


def answers(data: bytes) -> None:
    """What the control socket asks of an engine, with arguments of any kind."""
    tape = Tape(data)
    handlers = control_handlers(engine())
    for _ in range(1 + tape.below(CALLS_MAX)):
        name = tape.pick(list(handlers))
        args = {tape.pick(FIELDS): _any(tape) for _ in range(tape.below(5))}
        # The server answers whatever is raised; what counts is what it leaves behind.
        with contextlib.suppress(Exception):
            handlers[name](args)
    is_well()


def _any(tape: Tape) -> Any:
    match tape.below(4):
        case 0:
            return odd_value(tape)
        case 1:
            return [_word(tape)]
        case 2:
            return {_word(tape): _word(tape)}
        case _:
            return _word(tape)


def _word(tape: Tape) -> str:
    if tape.below(3):
        return tape.pick(WORDS)
    return mutate_bytes(tape, tape.pick(WORDS)[:50].encode("utf-8", "surrogatepass")).decode(
        "utf-8", "replace"
    )


def refusable(call: Callable[[], Any]) -> None:
    """What it raises has a code, and a text that can be shown."""
    try:
        call()
    except ParkadeError as error:
        assert error.code.startswith("PK-"), error
        text = str(error)
        assert len(text) < 20_000, "the error quotes all of it"


def is_well() -> None:
    """Every shard serves, and forgets what the input left."""
    mine = engine()
    runtime = runtime_of(mine)
    assert all(shard.is_open for shard in runtime.shards), [s.error for s in runtime.shards]
    assert runtime.host.shards[0].recoveries == runtime.host.shards[1].recoveries == 0
    for scope in list(runtime.attempts.admission.guards.pauses):
        kind, _, name = scope.partition(":")
        mine.resume(**({} if scope == "all" else {kind: name}))
    for state in mine.breakers.list():
        mine.breakers.close(state.name)
    ticket = mine.submit("note", {"n": 2})
    mine.run_until_idle(max_tickets=1_000)
    assert ticket.result() == 2


# ------------------------------------------------------------------------------------- the calls


def _ticket(tape: Tape) -> None:
    given = _word(tape)
    handle = engine().ticket(given)
    asks: list[Callable[[], Any]] = [handle.info, handle.cancel, handle.attempts, handle.why]
    tape.pick(asks)()


def _pages(tape: Tape) -> None:
    mine = engine()
    find: Callable[..., Any] = mine.find
    names = ["task", "key", "target", "state", "cursor", "tag", "limit"]
    if tape.flag():
        find = mine.dead.find
        names = ["task", "reason", "error_type", "group", "cursor", "limit"]
    find(**{name: _any(tape) for name in names if not tape.below(4)})


def _submit(tape: Tape) -> None:
    names = ("key", "unique", "target", "summary", "delay", "expires", "tags", "priority", "retry")
    options = {name: _any(tape) for name in names if not tape.below(4)}
    engine().lookup("note").options(**options).submit(1, text=_word(tape))


def _by_name(tape: Tape) -> None:
    engine().submit(_word(tape), {_word(tape): _any(tape)})


def _dead(tape: Tape) -> None:
    dead = engine().dead
    match tape.below(4):
        case 0:
            dead.revive(_word(tape), dry_run=tape.flag())
        case 1:
            dead.drop(group=_word(tape))
        case 2:
            dead.resolve(_word(tape), odd_value(tape), note=_word(tape))
        case _:
            dead.find(group=_word(tape), error_type=_word(tape))


def _scopes(tape: Tape) -> None:
    mine = engine()
    match tape.below(5):
        case 0:
            mine.pause(task=_word(tape), reason=_word(tape))
        case 1:
            mine.pause(target=_word(tape))
        case 2:
            mine.breakers.force_open(_word(tape), for_=_any(tape), reason=_word(tape))
        case 3:
            mine.cancel_many(task=_any(tape), key=_any(tape), tag=_any(tape), reason=_word(tape))
        case _:
            mine.limits.set(_word(tape), concurrency=_any(tape), rate=_any(tape))


CALLS = (_ticket, _pages, _submit, _by_name, _dead, _scopes)
