"""What one thread looks at while another changes it: every place where the other may come in."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from kit.attempts import AttemptRig
from kit.between import met_at_every_step
from parkade import Limit
from parkade.alive import Alive
from parkade.guards import Guards
from parkade.looped import LoopedPlace
from parkade.mailbox import Mailbox
from parkade.process_pool import ProcessPool
from parkade.runs import Run
from parkade.tasks import Tasks

Met = tuple[Callable[[], Any], Callable[[], object]]


def test_a_task_that_is_registered_while_plans_are_made_is_in_the_next_ones() -> None:
    def prepare() -> Met:
        engine, more = Tasks(), Tasks()
        more.task(
            name="new", target="api", aliases=["old"], limits=[Limit(concurrency=1, per="target")]
        )(lambda: None)
        guards = Guards(engine)

        def include() -> tuple[int, str]:
            engine.include(more)
            if guards.is_outdated():
                guards.renew()
            return len(guards.plan_of("any", "api").target_quotas), guards.plan_of("old", None).task

        return include, guards.renew

    assert set(met_at_every_step(prepare)) == {(1, "new")}


def test_a_task_that_is_registered_while_its_registry_is_included_is_taken_in() -> None:
    def prepare() -> Met:
        engine, more = Tasks(), Tasks()

        def include() -> Tasks:
            engine.include(more)
            return engine

        return include, lambda: more.task(name="new")(lambda: None)

    assert all(engine.task_of("new") for engine in met_at_every_step(prepare))


def test_a_registry_is_let_go_while_its_engine_is_looked_up() -> None:
    def prepare() -> Met:
        engine, tasks = Tasks(), Tasks()
        tasks.engine = cast(Any, engine)
        return lambda: tasks.engine in (engine, None), lambda: setattr(tasks, "engine", None)

    assert all(met_at_every_step(prepare))


def test_what_comes_and_goes_is_there_or_not() -> None:
    def prepare() -> Met:
        alive, engines = Alive[Tasks](), [Tasks() for _ in range(3)]
        for engine in engines:
            alive.add(engine)

        def change() -> None:
            alive.discard(engines[0])
            engines[1] = Tasks()  # nobody holds the one before any more
            alive.add(engines[1])

        return lambda: engines[2] in alive.all(), change

    assert all(met_at_every_step(prepare))


def test_nothing_is_lost_because_it_is_being_taken() -> None:
    def prepare() -> Met:
        mailbox, lost = Mailbox[int](10), list[int]()
        mailbox.put([1, 2])

        def take() -> list[int]:
            for _ in range(3):
                mailbox.take()
            return [*lost, mailbox.lost]

        return take, lambda: lost.append(mailbox.lost)

    assert all(not any(lost) for lost in met_at_every_step(prepare))


def test_a_ticket_that_is_cancelled_while_the_engine_stops_stays_so() -> None:
    rig = AttemptRig()
    task = rig.tasks.task(name="task")(lambda: None)

    def prepare() -> Met:
        job = rig.job(task)
        place = cast(Any, SimpleNamespace(interrupt=lambda run: None))
        run = Run(job, place, (job.serial, job.fence))
        rig.executor.runs.add([run])

        def stop() -> Run:
            rig.executor.cancel(*run.key, "the engine stops")
            return run

        return stop, lambda: rig.executor.cancel(*run.key, "enough", is_for_good=True)

    assert all(run.is_for_good for run in met_at_every_step(prepare))
    rig.executor.close()


def test_the_loop_of_handlers_goes_while_it_is_looked_for() -> None:
    loop = SimpleNamespace(is_closed=lambda: False)

    def prepare() -> Met:
        place = LoopedPlace(cast(Any, SimpleNamespace(all=lambda: [], zombies=lambda: [])))
        vars(place)["_runs"].lose = lambda runs, why: None
        place.attach(cast(Any, loop))
        vars(place)["_own"] = SimpleNamespace(
            loop=SimpleNamespace(call_soon_threadsafe=lambda call: None, stop=None)
        )

        def go() -> None:
            place.give_up_loop()
            place.close()

        return lambda: (place.is_lost(), place.own_loop), go

    assert {is_lost for is_lost, _ in met_at_every_step(prepare)} == {False}


def test_a_child_dies_while_their_pids_are_asked_for() -> None:
    def prepare() -> Met:
        places = [SimpleNamespace(process=SimpleNamespace(pid=pid)) for pid in (1, 2)]
        pool = ProcessPool.__new__(ProcessPool)
        vars(pool)["_places"] = places
        return lambda: pool.pids, lambda: setattr(places[1], "process", None)

    assert {tuple(pids) for pids in met_at_every_step(prepare)} == {(1, 2), (1,)}
