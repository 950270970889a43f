"""An engine with child processes, in a process that is killed.

    python -m kit.process_owner DIRECTORY FIFO [fork]

It submits a handler that says its process's number to FIFO and hangs, prints the ticket's id, and
waits for its end. With `fork` it has made a copy of itself before, which holds all that it had open
and prints its own number.
"""

import os
import signal
import sys

from kit.engines import make, runtime_of
from kit.process_tasks import hang, tasks, who

__all__ = ["main"]


def main() -> None:
    path, fifo, *more = sys.argv[1:]
    engine = make(path, durability="process", processes=1, include=[tasks]).start()
    engine.submit(who).result(timeout=30)
    if more:
        copy = os.fork()
        if copy == 0:
            signal.pause()
        print(copy, flush=True)
    print(engine.submit(hang, fifo).id, flush=True)
    [child] = runtime_of(engine).directory.lock.owner.children
    print(child.pid, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
