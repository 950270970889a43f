"""Finds a task again in a child process, by the names of modules and its own.

A child gets no code, only names: it imports the module that registers the task, as the owner did,
and looks among the registries that exist then. The owner's main program is imported under another
name, `__mp_main__`, as multiprocessing does, so that what stands below
`if __name__ == "__main__"` does not run.
"""

import importlib
import runpy
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

from parkade.errors import ConfigError
from parkade.reachable import CHILD_MAIN, MAIN, module_of
from parkade.tasks import Task, registries

__all__ = ["Finder"]


class Finder:
    """Finds tasks in a child. `main` and `main_path` are the owner's `main_program`."""

    def __init__(self, main: str | None, main_path: str | None) -> None:
        self._main = main
        self._main_path = main_path
        self._has_main = False
        self._found: dict[str, Task[Any, Any]] = {}

    def find(self, name: str, modules: Sequence[str]) -> Task[Any, Any]:
        """The task of this name. Raises `ConfigError` (PK-306), and whatever an import raises."""
        task = self._found.get(name)
        if task is None:
            task = self._found[name] = self._look(name, modules)
        return task

    def _look(self, name: str, modules: Sequence[str]) -> Task[Any, Any]:
        problems: list[str] = []
        for module in dict.fromkeys((*modules, MAIN)):
            try:
                self._import(module)
            except Exception as error:
                if module == modules[0]:
                    raise
                problems.append(f"; {module} cannot be imported: {type(error).__name__}: {error}")
            task = _registered(name, modules)
            if task is not None:
                return task
        raise ConfigError(
            f'the task "{name}" is not there in a child process: importing {" and ".join(modules)} '
            f"did not register it{''.join(problems)}. Decorate it at the top level of its module, "
            'not in a function and not below if __name__ == "__main__"',
            code="PK-306",
        )

    def _import(self, module: str) -> None:
        if module != MAIN:
            importlib.import_module(module)
        elif not self._has_main:
            self._import_main()
            self._has_main = True

    def _import_main(self) -> None:
        if self._main is None and self._main_path is None:
            return
        main = types.ModuleType(CHILD_MAIN)
        if self._main is not None:
            content = runpy.run_module(self._main, run_name=CHILD_MAIN, alter_sys=True)
        else:
            assert self._main_path is not None
            content = runpy.run_path(self._main_path, run_name=CHILD_MAIN)
        main.__dict__.update(content)
        # Later imports of it, and functions that look their module up, find the one that ran.
        sys.modules[MAIN] = sys.modules[CHILD_MAIN] = main


def _registered(name: str, modules: Iterable[str]) -> Task[Any, Any] | None:
    """The task of a name in any registry, preferring one whose function is of these modules: two
    engines of one program may both have a name."""
    names = {CHILD_MAIN if module == MAIN else module for module in modules}
    found = [task for tasks in registries() if (task := tasks.task_of(name)) is not None]
    for task in found:
        if module_of(task.handler) in names:
            return task
    return found[0] if found else None
