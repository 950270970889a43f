"""The children of a directory's former owner: awaited, and then ended.

They end with their owner, which takes a moment; what they do until then, they do for attempts that
the next owner takes for lost. So it waits for them before it settles those (docs/architecture.md,
Opening).
"""

import threading

from parkade.store.errors import LockedByOther
from parkade.store.lock import Child, DirectoryLock
from parkade.store.processes import is_alive, kill

__all__ = ["end_children"]

LOOK_S = 0.02
LOOKS_FOR_THEIR_END = 100
LOOKS_AFTER_KILL = 250


def end_children(lock: DirectoryLock) -> None:
    """Returns when none of the processes that the lock names is left.

    Raises `LockedByOther` for one that cannot be ended, as another user's; `WriteFailed`.
    """
    alive = _await_end(lock.owner.children, LOOKS_FOR_THEIR_END)
    for child in alive:
        kill(child)
    alive = _await_end(alive, LOOKS_AFTER_KILL)
    if alive:
        owner = lock.previous or lock.owner
        facts = owner.facts() | {"pid": alive[0].pid, "title": f"a child of process {owner.pid}"}
        raise LockedByOther(lock.directory, facts)
    lock.set_children(())


def _await_end(children: tuple[Child, ...], looks: int) -> tuple[Child, ...]:
    """Those that are left after so many looks."""
    never = threading.Event()
    for _ in range(looks):
        children = tuple(child for child in children if is_alive(child))
        if not children:
            break
        never.wait(LOOK_S)
    return children
