"""The mixed load of a soak: threads that each do one kind of thing over and over.

Each waits for what it has submitted, so that nothing piles up. All of them stand still at a gate
while the engine is stopped and opened again.
"""

import itertools
import random
import shutil
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from parkade import (
    Engine,
    ResultGone,
    Ticket,
    TicketCancelled,
    TicketFailed,
    UnknownTicket,
)
from soak import application as app

__all__ = ["Gate", "Load"]

NAMES = 40  # of a load whose names come again
PATIENCE = "120s"
BREATH_S = 0.03
OFTEN = ("submits", "names", "fails", "calls", "family", "looks")
SELDOM = ("steps", "cancels", "sleeps", "apart", "levers", "watches", "tools")
KINDS = OFTEN + SELDOM


class Gate:
    """Lets everybody in, or waits until nobody is inside and lets nobody in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_open = True

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_open)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._inside)

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


class Load:
    """`is_ever_new`: each name is used once. `failed` is called with what should not be."""

    def __init__(
        self, engine: Engine, path: Path, is_ever_new: bool, failed: Callable[[str], None]
    ) -> None:
        self.engine = engine
        self.path = path
        self.gate = Gate()
        self.rounds: Counter[str] = Counter()  # by kind
        self._is_ever_new = is_ever_new
        self._failed = failed
        self._count = itertools.count()
        self._breath = threading.Event()
        self._ended = threading.Condition()

    def start(self) -> None:
        for number, name in enumerate((*OFTEN * 2, *SELDOM)):
            kind, dice = getattr(self, name), random.Random(number)
            threading.Thread(target=self._for_ever, args=(kind, dice), daemon=True).start()

    def _for_ever(self, kind: Callable[[random.Random], None], dice: random.Random) -> None:
        try:
            while True:
                with self.gate:
                    kind(dice)
                with self._ended:
                    self.rounds[kind.__name__] += 1
                    self._ended.notify_all()
                self._breath.wait(BREATH_S)
        except BaseException:
            self._failed(traceback.format_exc())

    def await_round(self) -> Counter[str]:
        """Until every kind has had its turn once more; how often each had it."""
        with self._ended:
            before = self.rounds.copy()
            self._ended.wait_for(
                lambda: (
                    len(self.rounds) == len(KINDS)
                    and all(self.rounds[kind] > before[kind] for kind in self.rounds)
                )
            )
            return self.rounds.copy()

    def name(self) -> str:
        number = next(self._count)
        return f"{number if self._is_ever_new else number % NAMES}"

    def wait_for(self, *tickets: Ticket[Any]) -> None:
        """Until they have ended, however; some may be forgotten by then."""
        for ticket in tickets:
            with suppress(TicketFailed, TicketCancelled, UnknownTicket, ResultGone):
                ticket.result(PATIENCE)

    # ------------------------------------------------------------------ kinds

    def submits(self, dice: random.Random) -> None:
        calls = [app.quick.call(n) for n in range(20)] + [app.brief.call(n) for n in range(10)]
        tickets = self.engine.submit_many(calls)
        late = app.quick.options(delay=dice.choice(("10ms", "200ms", "1s"))).submit(1)
        self.wait_for(*tickets, late, app.flaky.submit(1), app.snoozed.submit())

    def names(self, dice: random.Random) -> None:
        """Keys, targets, tags, uniques and limits."""
        name = self.name()
        tags = {"campaign": name, f"tag-{name}": "1"}
        task = app.limited.options(key=f"k{name}", target=f"t{name}", tags=tags)
        tickets = [task.submit(n) for n in range(3)]
        plain: dict[str, Any] = {"key": f"k{name}", "unique": f"u{name}", "unique_for": "2s"}
        once = app.quick.options(**plain).submit(1)
        tickets += [once, app.quick.options(**plain, on_conflict="replace").submit(1)]
        tickets.append(app.quick.options(target=f"p{name}", priority=dice.randrange(3)).submit(1))
        list(self.engine.find(key=f"k{name}"))
        list(self.engine.find(tag=("campaign", name), limit=5))
        list(self.engine.find(target=f"t{name}", limit=5))
        self.wait_for(*tickets)

    def fails(self, dice: random.Random) -> None:
        """Dead letters: revived, resolved, dropped."""
        tickets = [app.doomed.options(summary=self.name()).submit(self.name()) for _ in range(4)]
        self.wait_for(*tickets)
        dead, (first, second, third, fourth) = self.engine.dead, tickets
        dead.revive(first.id, accept_ambiguous=True)
        dead.revive(second.id, delay="50ms", accept_ambiguous=True)
        with suppress(UnknownTicket):
            dead.resolve(third.id, 1, note="checked")
        dead.drop(fourth.id)
        if dice.random() < 0.1:
            for group in dead.groups(limit=20):
                dead.find(group=group.key, limit=5)
                dead.drop(group=group.key)
        self.wait_for(first, second)

    def calls(self, dice: random.Random) -> None:
        """Breakers that open and close again."""
        host = self.name()
        tickets = [app.called.submit(host, dice.choice((0, 1, 4))) for _ in range(4)]
        self.wait_for(*tickets)

    def family(self, dice: random.Random) -> None:
        ticket = app.parent.submit(self.name())
        self.wait_for(ticket)
        with suppress(UnknownTicket):
            ticket.attempts()

    def steps(self, dice: random.Random) -> None:
        self.wait_for(app.steady.submit(6))

    def cancels(self, dice: random.Random) -> None:
        running = app.patient.submit()
        waiting = app.quick.options(delay="1h", key=f"c{self.name()}").submit(1)
        waiting.reschedule(delay="2h")
        waiting.cancel("no more")
        late = app.quick.options(delay="1h", expires="2h").submit(1)
        late.reschedule(delay="10ms")
        running.why()
        running.cancel("enough")
        self.wait_for(running, waiting, late)

    def sleeps(self, dice: random.Random) -> None:
        """As many sleep as wake up: those of the round are cancelled in bulk."""
        name = self.name()
        calls = [
            app.far.options(
                delay=dice.choice(("2h", "3d", "1y")), key=f"f{name}", target=f"s{name}"
            ).call(name)
            for _ in range(40)
        ]
        self.engine.submit_many(calls)
        self.engine.cancel_many(key=f"f{name}")

    def apart(self, dice: random.Random) -> None:
        self.wait_for(*(app.apart.submit(n) for n in range(4)))

    def looks(self, dice: random.Random) -> None:
        engine = self.engine
        page = engine.find(state=dice.choice(("done", "dead", "scheduled", "running")), limit=20)
        if page.next is not None:
            engine.find(state="done", limit=20, cursor=page.next)
        engine.scan(lambda info: info.priority > 0, budget="20ms", limit=5)
        for info in list(page)[:2]:
            with suppress(UnknownTicket):
                engine.ticket(info.id).info()
                engine.ticket(info.id).why()
        engine.stats()
        engine.health()

    def levers(self, dice: random.Random) -> None:
        engine, name = self.engine, self.name()
        ticket = app.quick.options(target=f"w{name}").submit(1)
        engine.pause(target=f"w{name}", reason="soak")
        engine.limits.set(f"key:k{name}", concurrency=1)
        engine.breakers.force_open(f"host-x{name}", for_="20ms")
        engine.breakers.list()
        engine.limits.list()
        engine.limits.set(f"key:k{name}")
        engine.resume(target=f"w{name}")
        engine.breakers.close(f"host-x{name}")
        self.wait_for(ticket)

    def watches(self, dice: random.Random) -> None:
        with self.engine.events("done", "dead", buffer=100) as events:
            ticket = app.flaky.submit(2)
            kinds = [event.kind for event in ticket.watch(PATIENCE)]
            assert kinds[-1] == "done", kinds
            assert next(iter(events)).seq > 0

    def tools(self, dice: random.Random) -> None:
        """The command line beside the engine, and a backup while it runs."""
        for words in (("status", "--json"), ("ls", "--limit", "5"), ("dead", "groups")):
            self._tool(*words)
        copy = self.path.with_name(f"{self.path.name}-copy")
        shutil.rmtree(copy, ignore_errors=True)
        self.engine.backup(copy)
        shutil.rmtree(copy)
        self._breath.wait(1)

    def _tool(self, *words: str) -> None:
        command = [sys.executable, "-c", "from parkade.cli import main; main()"]
        done = subprocess.run(
            [*command, "--dir", str(self.path), *words], capture_output=True, text=True
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
