"""What an engine says in the log when it has opened a directory that others have used before."""

import logging
import os
from typing import TYPE_CHECKING

from parkade.stats import read_stats
from parkade.tasks import Tasks
from parkade.telling import tell
from parkade.wording import count_text

if TYPE_CHECKING:
    from parkade.runtime import Runtime
    from parkade.views import Stats

__all__ = ["remark_on_open", "unclaimed_text"]

TASKS_SHOWN = 5
_log = logging.getLogger("parkade.engine")


def remark_on_open(runtime: "Runtime", tasks: Tasks) -> None:
    """Warnings where there is reason to: of attempts that the last process did not end, of tickets
    that wait for a task which no code registers (PK-302), of tasks that have no place to run."""
    lost = runtime.lost_at_open
    if lost:
        one = lost == 1
        tell(
            _log,
            logging.WARNING,
            "%s of %s %s cut off when the last process ended. Nobody knows what %s did: %s marked "
            "maybe_applied, and retried or dead as on_crash= and the retry policy say",
            "1 attempt" if one else f"{count_text(lost)} attempts",
            runtime.directory.path,
            "was" if one else "were",
            "it" if one else "they",
            "its ticket is" if one else "their tickets are",
        )
    if runtime.options.has_attempts:
        homeless = [task.name for task in tasks.all_tasks() if task.where == "process"]
        if homeless and not runtime.options.processes:
            tell(
                _log,
                logging.WARNING,
                'this engine has no processes, and where="process" asks for one: tickets of %s are '
                "held. Give it some: Engine(processes=%d)",
                ", ".join(homeless[:TASKS_SHOWN]) + ", ..." * (len(homeless) > TASKS_SHOWN),
                os.cpu_count() or 1,
            )
        text = unclaimed_text(read_stats(runtime), tasks)
        if text is not None:
            tell(_log, logging.WARNING, "%s", text)


def unclaimed_text(stats: "Stats", tasks: Tasks) -> str | None:
    """PK-302, or None where every task with tickets that wait is registered."""
    waiting = {task: counts.get("scheduled", 0) for task, counts in stats.by_task.items()}
    unclaimed = sorted(
        ((count, task) for task, count in waiting.items() if count and not tasks.task_of(task)),
        reverse=True,
    )
    if not unclaimed:
        return None
    total = sum(count for count, _ in unclaimed)
    shown = ", ".join(f"{task} ({count_text(count)})" for count, task in unclaimed[:TASKS_SHOWN])
    more = f" and {len(unclaimed) - TASKS_SHOWN} more" if len(unclaimed) > TASKS_SHOWN else ""
    tickets = "1 ticket waits" if total == 1 else f"{count_text(total)} tickets wait"
    names = "1 task that is" if len(unclaimed) == 1 else f"{len(unclaimed)} tasks that are"
    held = "It is held" if total == 1 else "They are held"
    return (
        f"{tickets} for {names} not registered: {shown}{more}. {held}, not lost. Import the "
        f'module, or add aliases=["{unclaimed[0][1]}"] to its new name [PK-302]'
    )
