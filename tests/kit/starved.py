"""An engine whose process really runs out of file descriptors in the middle of work, and gets them
back. Prints `fine`.

    python -m kit.starved DIRECTORY
"""

import os
import resource
import sys
import threading

from kit.engines import PATIENCE_S, make, recount, when
from kit.process_tasks import add, tasks
from parkade import StorageError

__all__ = ["main"]

SUBMITS = 60  # of 100 KB: each shard begins several segments
ROUNDS = 2
EARLY = 32  # to have each shard make its first spare


def take_all() -> list[int]:
    """Every descriptor that is left, and a few to leave: no more than so many are open at once."""
    soft = len(os.listdir("/dev/fd")) + 8
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    taken: list[int] = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return taken


def main() -> None:
    engine = make(sys.argv[1], durability="process", processes=1, include=[tasks])

    @engine.task
    def note(text: str) -> int:
        return len(text)

    later = note.options(delay="1h")
    refused = threading.Event()
    names: list[str] = []

    def load(first: int) -> None:
        """Whoever was refused submits again, as the error says."""
        for number in range(first, first + SUBMITS):
            name = f"{number}"
            while True:
                try:
                    later.options(unique=name).submit("x" * 100_000)
                except StorageError as error:
                    assert "submit again with unique=" in str(error), error
                    refused.set()
                else:
                    names.append(name)
                    break

    with engine:
        engine.submit_many([later.call("early" * 4_000) for _ in range(EARLY)])
        for number in range(ROUNDS):
            when(engine, lambda runtime: all(s.journal.has_spare for s in runtime.shards))
            refused.clear()
            taken = take_all()
            apart = engine.submit(add, 1, number)  # its child process needs some
            loading = threading.Thread(target=load, args=(number * SUBMITS,))
            loading.start()
            assert refused.wait(PATIENCE_S), "it needed none"
            for each in taken:
                os.close(each)
            loading.join(PATIENCE_S)
            assert not loading.is_alive()
            assert apart.result(PATIENCE_S) == 1 + number
            assert note.submit("soon").result(PATIENCE_S) == 4
        shards = engine.stats().shards
        assert [shard.status for shard in shards] == ["open", "open"]
        assert sum(shard.recoveries for shard in shards) > 0
        counts = recount(engine)
        assert counts == engine.stats().by_task
        assert counts["note"] == {"scheduled": EARLY + len(names), "done": ROUNDS}
        assert len(set(names)) == len(names) == ROUNDS * SUBMITS
    print("fine", flush=True)


if __name__ == "__main__":
    main()
