"""Who may start now: places, limits, breakers and pauses, dealt to the lanes of all shards.

Engine-wide and exact, because only the core thread runs it. What is freed goes, before that thread
waits again, to the head that is first by priority, first due time and serial among all that may use
it, and after a long row of one task to another's (`Turns`); a ticket gets all it needs or nothing
(docs/architecture.md, Admission and attempts).

The lanes of one task and target, of whatever shard and priority, are held by the same things: they
make up a `Queue`. A queue that is held is put under what holds it and is not looked at again
before that changes, and a task that is held keeps all its queues from being looked at. So the work
of a pass depends on what has changed, and not on how much is held.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol

from parkade import limits
from parkade.crowd import CROWD_MIN, crowd_of
from parkade.guards import Guards, Hold, Permit
from parkade.queues import Held, Owner, Post, Queue, TaskQueues, rank_of
from parkade.ranking import Rank, Ranking
from parkade.shard.crowd import lone_fresh, take_first
from parkade.shard.keys import CLOCK, SUSPECT
from parkade.shard.lane import RANK_MAX, SERIAL_MASK
from parkade.shard.lanes import Lane
from parkade.shard.placement import Placement
from parkade.shard.refill import wants_heads
from parkade.shard.retry import expiry_of, is_late
from parkade.shard.ticket import Ticket
from parkade.start_gate import Gate
from parkade.turns import Turns

__all__ = ["Admission", "Handlers", "ShardLanes"]


class Handlers(Protocol):
    """Which executor the attempts of each registered task run in."""

    def kinds(self) -> Mapping[str, str]: ...


class ShardLanes(Protocol):
    """What admission needs of a shard: its lanes."""

    number: int

    @property
    def placement(self) -> Placement: ...


class Admission:
    """Counts what is in use and hands out what is free."""

    def __init__(
        self, places: dict[str, int], handlers: Handlers, guards: Guards | None = None
    ) -> None:
        self.places = places
        self.used = dict.fromkeys(places, 0)
        self.guards = guards or Guards()
        self.handlers = handlers
        self.owners: dict[int, Owner] = {}
        self._count = count()
        self._clocks = (0, 0)  # wall, monotonic: of the last look
        self.suspect_running: tuple[int, int] | None = None  # (shard, serial)
        self.thinned: set[int] = set()  # shards some of whose windows may want a refill
        self.lag_ms = 0
        self._key_timers: list[tuple[int, int, Owner, str]] = []
        self._keys_timed: set[tuple[int, str]] = set()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._tasks: dict[str, TaskQueues] = {}
        self._queues: dict[tuple[str, str | None], Queue] = {}
        self._ready: dict[str, Ranking[TaskQueues]] = {kind: Ranking() for kind in self.places}
        self._held: dict[tuple[str, str], set[Held]] = {}
        self._timers: tuple[list[_Timer], list[_Timer]] = ([], [])  # wall, monotonic
        self._turns: Turns[TaskQueues] = Turns()
        self._best: TaskQueues | None = None  # of the last look: whose head goes before all others
        self.is_stirred = True  # something may start that could not at the last look

    @property
    def has_places(self) -> bool:
        return self.used != self.places

    # ---------------------------------------------------------------------------------- taking

    @property
    def is_one_task(self) -> bool:
        """Whether no other task has started anything for long."""
        return self._turns.in_a_row >= limits.STARTS_ALONE_MIN

    def may_take(
        self,
        shards: Sequence[ShardLanes],
        now_ms: int,
        mono_ms: int | None = None,
        settled_ms: int | None = None,
    ) -> bool:
        """Whether there is anything to look at for `take`, with the same arguments. In most passes
        nothing has changed since it had nothing to give."""
        if self.used == self.places:
            return False
        wall, mono = self._timers
        if self.is_stirred or wall or mono or self._key_timers or self.guards.is_outdated():
            return True
        if self.lag_ms or (settled_ms is not None and settled_ms < now_ms):
            return True
        owners = self.owners
        for number in owners:
            if owners[number].shelf:
                return True
        for shard in shards:
            lanes = shard.placement.lanes
            if lanes.changed or lanes.fresh or lanes.fresh is None:
                return True
        self._clocks = (now_ms, now_ms if mono_ms is None else mono_ms)
        return False

    def take(
        self,
        shards: Sequence[ShardLanes],
        now_ms: int,
        mono_ms: int | None = None,
        settled_ms: int | None = None,
        *,
        most: int = limits.START_BATCH_MAX,
    ) -> Iterator[Permit]:
        """Tickets to start, best first, with what they need, while it is there; `most`, and at most
        a batch at a time.

        `shards` are those that take starts. `mono_ms` and `settled_ms` None: like the wall clock.
        """
        if not self.has_places:
            return
        self._look(now_ms, now_ms if mono_ms is None else mono_ms, settled_ms, shards)
        fresh = self._fresh()
        if most <= 0 or not (fresh or self.is_stirred):
            return
        if len(fresh) == 1 and not self.is_stirred:
            lone = self._take_lone(fresh[0])
            if lone is not None:
                yield lone
                fresh = self._fresh()
            if not (fresh or self.is_stirred):
                return
        for owner in fresh:
            self._note_fresh(owner)
        left = min(most, limits.START_BATCH_MAX)
        while left:
            queue = self._first_queue()
            if queue is None:
                self.is_stirred = False
                return
            taken = self._take_from(queue, left)
            left -= len(taken)
            yield from taken

    def _look(
        self, now_ms: int, mono_ms: int, settled_ms: int | None, shards: Sequence[ShardLanes]
    ) -> None:
        was_ms = self._clocks[0]
        self._clocks = (now_ms, mono_ms)
        lag_ms = now_ms - settled_ms if settled_ms is not None and settled_ms < now_ms else 0
        if lag_ms != self.lag_ms:
            self._watch_lag(lag_ms)
        owners = self.owners
        for number in owners:
            owners[number].is_open = False
        for shard in shards:  # those that take starts
            number, placement = shard.number, shard.placement
            if number in owners and owners[number].placement is placement:
                known = owners[number]
            else:
                known = self._begin_with(number, placement)
            known.is_open = True
            if known.shelf:
                shelf, known.shelf = known.shelf, set()
                for post in shelf:
                    self._note_post(post)
        if self.guards.is_outdated():
            self.refresh()
        wall, mono = self._timers
        if wall or mono or self._key_timers:
            self._fire(now_ms, mono_ms, went_back=now_ms < was_ms)

    def _fresh(self) -> list[Owner]:
        """Those that take starts and whose lanes have changed since the last time."""
        return [
            owner
            for owner in self.owners.values()
            if owner.is_open and (owner.lanes.changed or owner.lanes.fresh)
        ]

    def _begin_with(self, number: int, placement: Placement) -> Owner:
        """A shard is met for the first time, or with another memory than before."""
        self.shard_is_gone(number)
        owner = self.owners[number] = Owner(number, placement)
        placement.lanes.watch(Gate(self, owner))
        return owner

    def _take_lone(self, owner: Owner) -> Permit | None:
        """The only ticket that has come since nothing could start, if nothing is to be said of it:
        where nobody else waits, who goes first need not be found out."""
        lane = lone_fresh(owner.lanes)
        if lane is None or self.lag_ms:
            return None
        now_ms, mono_ms = self._clocks
        plan = self.guards.plan_of(lane.key[0], lane.key[1])
        task = self._tasks.get(plan.task)
        if task is None or task.hold is not None or lane.key[:2] in self._queues:
            return None
        kind, guards = task.kind, self.guards
        if not kind or self.used[kind] >= self.places[kind] or not self._turns.left(task):
            return None
        rank = lane.window[0]
        ticket = owner.placement.memory.hot[rank & SERIAL_MASK]
        if ticket.key is not None or ticket.is_suspect or not guards.is_plain(plan):
            return None
        if guards.pauses and guards.task_hold(plan, now_ms, mono_ms) is not None:
            return None
        serial = owner.placement.take_head(lane, rank, now_ms)
        if serial is None:
            self.thinned.add(owner.number)  # due later by now: its shard is to know when
            return None
        owner.lanes.is_fresh_alone(lane)
        self._turns.note(task)
        self.used[kind] += 1
        guards.begin_plain(plan, 1, mono_ms)
        return Permit(owner.number, serial, kind, plan, None, is_plain=True)

    def _first_queue(self) -> Queue | None:
        """Where the ticket waits that goes first of all that nothing holds."""
        now_ms, mono_ms = self._clocks
        while True:
            task = self._first_task()
            if task is None:
                return None
            hold = self.guards.task_hold(task.plan, now_ms, mono_ms)
            if hold is not None:
                self._ready[task.kind].remove(task)
                self._put_under(task, hold)
                continue
            queue = task.queues.first()
            assert queue is not None
            hold = self.guards.target_hold(queue.plan, now_ms, mono_ms)
            if hold is None:
                return queue
            task.queues.remove_first()
            self._put_under(queue, hold)

    def _first_task(self) -> TaskQueues | None:
        best: TaskQueues | None = None
        for kind, ranking in self._ready.items():
            if self.used[kind] < self.places[kind]:
                task = ranking.first()
                if task is not None and (best is None or rank_of(task) < rank_of(best)):
                    best = task
        self._best = best
        if best is not None and self._turns.left(best) == 0:
            return self._turns.next(best, self._ready[best.kind].first_but_one())
        return best

    def _take_from(self, queue: Queue, most: int) -> list[Permit]:
        """The first of a queue, and those behind it that go before all others: in this round what
        holds the others does not change. One at a time where there is something to count."""
        task = queue.task
        kind, is_counted = task.kind, self.guards.is_counted(queue.plan)
        # Out of turn there is one for it, though others go before it.
        is_first = self._best is task
        bound = self._bound(task) if is_first else None
        most = min(most, self._turns.left(task)) if is_first else 1
        taken: list[Permit] = []
        if most >= CROWD_MIN and not self.lag_ms and self.guards.is_plain(queue.plan):
            taken = self._take_crowd(queue, most, bound)
        while len(taken) < most and self.used[kind] < self.places[kind]:
            post = queue.posts.first()
            if post is None or (bound is not None and bound < rank_of(post)):
                break
            permit, is_alone = self._take_first(post)
            if permit is not None:
                taken.append(permit)
            if is_counted or not is_alone:
                break
        if taken:
            self._turns.note(task, len(taken))
        return taken

    def _take_crowd(self, queue: Queue, most: int, bound: Rank | None) -> list[Permit]:
        """Those of `_take_from` at once, up to the first of which there is more to be said."""
        kind, plan = queue.task.kind, queue.plan
        most = min(most, self.places[kind] - self.used[kind])
        first = queue.posts.first()
        if first is None or most < CROWD_MIN:
            return []
        if queue.size == 1 and len(first.lane.window) < CROWD_MIN:
            return []  # found out here, since a ticket alone is what somebody waits for
        before = RANK_MAX
        if bound is not None and bound[0] <= first.order:
            before = bound[1] if bound[0] == first.order else 0
        posts = [p for p in queue.posts.all() if p.order == first.order and p.head() is not None]
        crowd = crowd_of(posts, most, before, self._clocks[0])
        if len(crowd) < CROWD_MIN:
            return []
        for post, count_of in Counter([post for _, post in crowd]).items():
            take_first(post.owner.lanes, post.lane, count_of)
            if not post.lane.window or not post.owner.lanes.is_fresh_alone(post.lane):
                self._note_fresh(post.owner)
        self.used[kind] += len(crowd)
        self.guards.begin_plain(plan, len(crowd), self._clocks[1])
        return [
            Permit(post.owner.number, rank & SERIAL_MASK, kind, plan, None, is_plain=True)
            for rank, post in crowd
        ]

    def _bound(self, task: TaskQueues) -> Rank | None:
        """Before which rank nobody outside of the first queue of this task, the first one, goes."""
        ranks = [task.queues.second()]
        for kind, ranking in self._ready.items():
            if self.used[kind] < self.places[kind]:
                ranks.append(ranking.second() if kind == task.kind else ranking.head())
        return min((rank for rank in ranks if rank is not None), default=None)

    def _take_first(self, post: Post) -> tuple[Permit | None, bool]:
        """The first of a lane, if it is still the best of all once those who may not start have
        stepped aside; and whether the heads of all other lanes are what they were."""
        owner, lane, queue = post.owner, post.lane, post.queue
        now_ms, mono_ms = self._clocks
        placement = owner.placement
        serial = placement.take_head(lane, rank_of(post)[1], now_ms)
        is_alone = owner.lanes.is_fresh_alone(lane)
        if not is_alone or not lane.window:
            is_alone = self._note_fresh(owner, lane) and is_alone
            self._note(owner, lane)
        if serial is None:
            self.thinned.add(owner.number)
            return None, is_alone
        ticket = placement.memory.hot[serial]
        kind = queue.task.kind
        permit = Permit(owner.number, serial, kind, queue.plan, ticket.key)
        if ticket.is_suspect:
            self.suspect_running = (owner.number, serial)
            permit.is_suspect = True
        self.guards.begin(permit, now_ms, mono_ms)
        self.used[kind] += 1
        return permit, is_alone

    # -------------------------------------------------------------------------------- freeing

    def release(self, permit: Permit, now_ms: int) -> None:
        """Its attempt has physically ended, however: what it had goes to who is first."""
        kind = permit.kind
        self.used[kind] -= 1
        assert self.used[kind] >= 0, (kind, self.used)
        freed = self.guards.end(permit, now_ms)
        if self._held:
            for kind, name in freed:
                self.wake(kind, name)
        if permit.is_suspect:
            self.suspect_running = None
            for owner in self.owners.values():
                owner.lanes.hand_on(SUSPECT)
        self._stir()

    def release_plain(self, permit: Permit, count: int) -> None:
        """`release` of so many plain ones that are like this one."""
        kind = permit.kind
        self.used[kind] -= count
        assert self.used[kind] >= 0, (kind, self.used)
        freed = self.guards.end_plain(permit.plan, count)
        if self._held:
            self.wake(*freed)
        self._stir()

    def _stir(self) -> None:
        """Something is free, which is looked at where somebody waits."""
        self.is_stirred = self.is_stirred or bool(self._queues)

    def undo(self, permit: Permit, now_ms: int) -> None:
        """Its attempt never began: rates count it no more."""
        self.guards.undo(permit)
        self.release(permit, now_ms)

    def wake(self, kind: str, name: str) -> None:
        """What (kind, name) held is looked at again."""
        for held in self._held.pop((kind, name), ()):
            self._let_go(held)

    def hand_on_key(self, key: str) -> None:
        """More of a key may run than before."""
        for owner in self.owners.values():
            owner.lanes.hand_on_all(key)
        self.is_stirred = True

    def shard_is_gone(self, number: int) -> None:
        """Its memory was thrown away: what waited there is found again by its recovery."""
        owner = self.owners.pop(number, None)
        if owner is not None:
            owner.is_current = False
            for post in owner.posts.values():
                self._shrink(post.queue)
            owner.posts.clear()
            owner.shelf.clear()

    def refresh(self) -> None:
        """Tasks were registered, or numbers set: everything is sorted anew. Walks all lanes."""
        self.guards.renew()
        self._begin_anew()
        for owner in self.owners.values():
            owner.posts.clear()
            owner.shelf.clear()
            for _, lane in owner.lanes.sorted_heads():
                self._note(owner, lane)

    # --------------------------------------------------------------------------------- noting

    def _note_fresh(self, owner: Owner, known: Lane | None = None) -> bool:
        """Lanes whose heads have changed since the last time; True: none but that one."""
        is_known = True
        for lane in owner.lanes.take_fresh():
            self._note(owner, lane)
            is_known = is_known and lane is known
        return is_known

    def _note(self, owner: Owner, lane: Lane) -> None:
        post = owner.posts.get(lane)
        if not lane.window:
            if post is not None:
                del owner.posts[lane]
                if post.listed is not None:
                    post.queue.posts.remove(post)  # the lane may come back, with another post
                self._shrink(post.queue)
            return
        if post is None:
            task, target, _ = lane.key
            queue = self._queue(task, target)
            queue.size += 1
            post = owner.posts[lane] = Post(owner, lane, queue)
        self._note_post(post)

    def _note_post(self, post: Post) -> None:
        if post.queue.posts.note(post):
            self._list(post.queue)

    def _list(self, queue: Queue) -> None:
        """Puts a queue, and its task, where they are found if they may start."""
        if queue.hold is None:
            task = queue.task
            if task.queues.note(queue) and task.hold is None and task.kind:
                self._ready[task.kind].note(task)
            self.is_stirred = True

    def _queue(self, task_name: str, target: str | None) -> Queue:
        queue = self._queues.get((task_name, target))
        if queue is None:
            plan = self.guards.plan_of(task_name, target)
            task = self._tasks.get(plan.task)
            if task is None:
                kind = self.handlers.kinds().get(task_name, "")
                if kind not in self.places:
                    kind = ""  # no place will ever be free: held like what has no handler
                task = self._tasks[plan.task] = TaskQueues(kind, plan)
            queue = self._queues[task_name, target] = Queue((task_name, target), task, plan)
        return queue

    def _shrink(self, queue: Queue) -> None:
        """One lane of the queue is empty. A queue without any is forgotten, unless it is held: then
        when it is let go."""
        queue.size -= 1
        if queue.size == 0 and queue.hold is None:
            self._queues.pop(queue.key, None)

    # ---------------------------------------------------------------------------------- holds

    def _put_under(self, held: Held, hold: Hold) -> None:
        """Something does not come up again before what holds it changes."""
        held.hold = hold
        self._held.setdefault((hold.kind, hold.name), set()).add(held)
        # Where there are more lanes than heads, those of others take the place of what is held.
        self.thinned.update(o.number for o in self.owners.values() if wants_heads(o.lanes))
        for timers, due_ms in zip(self._timers, (hold.wall_ms, hold.mono_ms), strict=True):
            if due_ms is not None:
                heapq.heappush(timers, (due_ms, next(self._count), held, hold))
                if len(timers) > 64 + 2 * sum(map(len, self._held.values())):
                    timers[:] = [timer for timer in timers if timer[2].hold is timer[3]]
                    heapq.heapify(timers)

    def _let_go(self, held: Held) -> None:
        held.hold = None
        if isinstance(held, Queue):
            if held.size:
                self._list(held)
            else:
                self._queues.pop(held.key, None)
        elif held.kind:
            self._ready[held.kind].note(held)
        self.is_stirred = True
        # Held lanes do not fill their windows: now they may want to.
        self.thinned.update(o.number for o in self.owners.values() if o.lanes.hungry)

    def _fire(self, now_ms: int, mono_ms: int, *, went_back: bool) -> None:
        """Lets go of what was held until now; of all that waits for a wall clock that went back."""
        wall, mono = self._timers
        for timers, until_ms in ((wall, None if went_back else now_ms), (mono, mono_ms)):
            while timers and (until_ms is None or timers[0][0] <= until_ms):
                _, _, held, hold = heapq.heappop(timers)
                if held.hold is hold:
                    beside = self._held[hold.kind, hold.name]
                    beside.discard(held)
                    if not beside:
                        del self._held[hold.kind, hold.name]
                    self._let_go(held)
        while self._key_timers and self._key_timers[0][0] <= mono_ms:
            _, _, owner, key = heapq.heappop(self._key_timers)
            self._keys_timed.discard((owner.number, key))
            if owner.is_current:
                owner.lanes.hand_on(key)
                self._note_fresh(owner)

    def wait_ms(self, now_ms: int, mono_ms: int) -> int | None:
        """How long until time alone may let something start; None: it will not."""
        if not self.has_places:
            return None
        if self.is_stirred:
            return 0
        wall, mono = self._timers
        waits = [wall[0][0] - now_ms] if wall else []
        waits += [timers[0][0] - mono_ms for timers in (mono, self._key_timers) if timers]
        return max(0, min(waits)) if waits else None

    # ------------------------------------------------------------------------ tickets by themselves

    def reason_of(self, owner: Owner, ticket: Ticket) -> str | int | None:
        """Why a ticket by itself may not start. See `StartGate`."""
        if ticket.is_suspect and self.suspect_running is not None:
            return SUSPECT
        if self.lag_ms and self._is_over_by_wall_clock(ticket):
            return CLOCK
        key = ticket.key
        if key is None:
            return None
        mono_ms = self._clocks[1]
        plan = self.guards.plan_of(ticket.task, ticket.target)
        if not plan.key_quotas and not self.guards.overrides:
            return None
        wait_ms = self.guards.key_wait_ms(plan, key, mono_ms)
        if wait_ms == 0:
            return None
        if (owner.number, key) not in self._keys_timed:
            self._keys_timed.add((owner.number, key))
            entry = (mono_ms + wait_ms, next(self._count), owner, key)
            heapq.heappush(self._key_timers, entry)
        return key

    def is_held(self, key: tuple[str, str | None, int]) -> bool:
        """Whether a lane is known to be held, by its task or its target. See `StartGate`."""
        # No plan is made for it: this is asked of every low lane in each pass.
        queue = self._queues.get(key[:2])
        task = self._tasks.get(self.guards.name_of(key[0])) if queue is None else queue.task
        if task is not None and (task.hold is not None or not task.kind):
            return True
        return queue is not None and queue.hold is not None

    def _is_over_by_wall_clock(self, ticket: Ticket) -> bool:
        """Expired or late, and by the settled clock not: held, neither started nor ended."""
        now_ms = self._clocks[0]
        expiry_ms = expiry_of(ticket)
        if expiry_ms is not None and now_ms - self.lag_ms < expiry_ms <= now_ms:
            return True
        max_elapsed_ms = self.guards.max_elapsed_ms(ticket)
        return is_late(ticket, max_elapsed_ms, now_ms) and not is_late(
            ticket, max_elapsed_ms, now_ms - self.lag_ms
        )

    def _watch_lag(self, lag_ms: int) -> None:
        """The settled clock goes behind the wall clock for a while, or has caught up with it."""
        was_ms, self.lag_ms = self.lag_ms, lag_ms
        if was_ms and lag_ms < was_ms:
            for owner in self.owners.values():
                owner.lanes.hand_on_all(CLOCK)


_Timer = tuple[int, int, Held, Hold]
