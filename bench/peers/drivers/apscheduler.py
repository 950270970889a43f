"""APScheduler 3 with its SQLAlchemy job store on SQLite: WAL, synchronous=FULL."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine, event

from bench.peers.driver import Driver, Dues, Handler, timed_each

WORKERS = 10  # its default
HANDLERS: list[Handler] = []  # a job is stored by its function's name: only a module's will do


def job(payload: str) -> None:
    """What is stored and run."""
    HANDLERS[0](payload)


def power_safe(connection: Any, _: object) -> None:
    """Each connection of the pool, as it is made."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


class APScheduler(Driver):
    """One job of one run each; the scheduler is paused until it is to work."""

    settings = (
        f"SQLAlchemyJobStore on SQLite WAL, synchronous=FULL; {WORKERS} threads; "
        "misfire_grace_time=None (the default of 1 s drops what it is late for)"
    )

    def open(self) -> None:
        engine = create_engine(f"sqlite:///{self.place.directory / 'jobs.db'}")
        event.listen(engine, "connect", power_safe)
        self._scheduler = BackgroundScheduler(
            jobstores={"default": SQLAlchemyJobStore(engine=engine)},
            executors={"default": ThreadPoolExecutor(WORKERS)},
            job_defaults={"misfire_grace_time": None},
            timezone=UTC,
        )
        self._scheduler.start(paused=True)

    def _submit(self, payload: str, due: float | None) -> object:
        at = None if due is None else datetime.fromtimestamp(due, UTC)
        return self._scheduler.add_job(job, "date", run_date=at, args=(payload,))

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        return timed_each(self._submit, payloads, dues)

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        HANDLERS[:] = [handler]
        self._scheduler.resume()

    def close(self) -> None:
        self._scheduler.shutdown()
