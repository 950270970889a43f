"""Whether another process can import a handler, and from where.

A child process gets names, not code (`parkade.finder`): it can run what an import of a module
registers.
"""

import sys

from parkade.errors import ConfigError
from parkade.handlers import Handler

__all__ = ["CHILD_MAIN", "MAIN", "check_reachable", "main_program", "module_of", "modules_of"]

MAIN = "__main__"
CHILD_MAIN = "__mp_main__"


def main_program() -> tuple[str | None, str | None]:
    """What runs as the main program here, as another process may import it: its name
    (`python -m name`), or else its path. Neither for a prompt, a notebook, `python -c`, and for the
    `__main__` of a package, which is seldom written to be imported."""
    main = sys.modules.get(MAIN)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name = str(spec.name)
        return (None if name == MAIN or name.endswith(f".{MAIN}") else name), None
    path = getattr(main, "__file__", None)
    return None, None if path is None else str(path)


def check_reachable(handler: Handler) -> None:
    """Raises `ConfigError` (PK-306) for a function that another process cannot import."""
    qualname = str(getattr(handler.fn, "__qualname__", handler.default_name))
    problem = None
    if "<" in qualname:
        problem = "it is made inside another function, or a lambda"
    elif module_of(handler) == MAIN and main_program() == (None, None):
        problem = "it stands in a prompt, a notebook, python -c or the __main__ of a package"
    if problem is not None:
        raise ConfigError(
            f'{handler.call}: {handler.default_name}() cannot run with where="process": a child '
            f"process imports the module of the function, and {problem}. Put it at the top level "
            "of a module",
            code="PK-306",
        )


def modules_of(handler: Handler, registered_in: str) -> list[str]:
    """Whose import registers a task: the module of its function, then the one that decorated it."""
    names = (module_of(handler), registered_in)
    return list(dict.fromkeys(MAIN if name == CHILD_MAIN else name for name in names if name))


def module_of(handler: Handler) -> str:
    """The module of the handler's function, as it says itself."""
    return str(getattr(handler.fn, "__module__", None) or "")
