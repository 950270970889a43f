"""An engine whose handlers wait for a word, in a process that somebody stops and lets go on.

    python -m kit.frozen DIRECTORY LEASE

It submits one ticket and prints what happens, a line each; each line of its input lets one attempt
end:

    begin FENCE     a handler begins
    end FENCE       it ends
    then OUTCOME... the ticket has ended: how each attempt did
    refused COUNT   outcomes that counted for nothing
"""

import sys

from kit.engines import make
from parkade import Attempt, RetryPolicy

__all__ = ["main"]


def main() -> None:
    path, lease = sys.argv[1:]
    engine = make(path, durability="process", threads=2)

    @engine.task(lease=lease, retry=RetryPolicy(1_000, backoff=["1ms"]))
    def work(attempt: Attempt) -> int:
        print("begin", attempt.fence, flush=True)
        sys.stdin.readline()
        print("end", attempt.fence, flush=True)
        return attempt.fence

    with engine:
        ticket = work.submit()
        ticket.result()
        outcomes = [attempt.outcome for attempt in ticket.attempts()]
        print("then", *outcomes, ticket.info().maybe_applied, flush=True)
        sys.stdin.readline()
        print("refused", sum(shard.refused_outcomes for shard in engine.stats().shards), flush=True)


if __name__ == "__main__":
    main()
