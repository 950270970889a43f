"""DBOS with its system database on SQLite: WAL, synchronous=FULL."""

from collections.abc import Sequence

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, SetEnqueueOptions

from bench.peers.driver import Driver, Dues, Handler, left_s, timed_each, use_wal

QUEUE, JOB = "jobs", "job"
POLL_S = 0.01
HANDLERS: list[Handler] = []


def job(payload: str) -> None:
    """The workflow: a call of the handler."""
    HANDLERS[0](payload)


class Dbos(Driver):
    """A workflow for each job. A process that does not work yet submits as a client, from outside;
    one that works starts what is due at once without a queue."""

    settings = (
        "SQLite WAL (it asks for none, and is several times slower then), synchronous=FULL "
        "(SQLite's default); enqueued by DBOSClient, or by start_workflow where the same process "
        f"works; a queue that polls every {POLL_S * 1e3:.0f} ms (default 1 s)"
    )

    def open(self) -> None:
        file = self.place.directory / "dbos.db"
        is_new = not file.exists()
        use_wal(file)
        self._url = f"sqlite:///{file}"
        self._client: DBOSClient | None = None
        self._is_working = False
        if is_new:
            self._launch()
            DBOS.destroy()

    def _launch(self) -> None:
        config = DBOSConfig(
            name="bench",
            system_database_url=self._url,
            log_level="CRITICAL",
            application_version="1",
            executor_id="bench",
        )
        DBOS(config=config)
        self._job = DBOS.workflow(name=JOB)(job)
        DBOS.launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=POLL_S)

    def _submit(self, payload: str, due: float | None) -> object:
        if self._is_working:
            return self._submit_within(payload, due)
        if self._client is None:
            self._client = DBOSClient(system_database_url=self._url, application_name="bench")
        options = EnqueueOptions(workflow_name=JOB, queue_name=QUEUE)
        if due is not None:
            options["delay_seconds"] = left_s(due)
        return self._client.enqueue(options, payload)

    def _submit_within(self, payload: str, due: float | None) -> object:
        if due is None:
            return DBOS.start_workflow(self._job, payload)
        with SetEnqueueOptions(delay_seconds=left_s(due)):
            return DBOS.enqueue_workflow(QUEUE, self._job, payload)

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        return timed_each(self._submit, payloads, dues)

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        HANDLERS[:] = [handler]
        self._is_working = True
        self._launch()

    def close(self) -> None:
        if self._client is not None:
            self._client.destroy()
        if self._is_working:
            DBOS.destroy()
