"""Log lines of the engine's own threads.

Handlers and filters of `logging` are the application's code, and so are the exceptions that they
are to show. The threads of the engine must outlive both.
"""

import logging

__all__ = ["tell"]


def tell(
    log: logging.Logger,
    level: int,
    text: str,
    *arguments: object,
    error: BaseException | None = None,
) -> None:
    """`log.log`, with the traceback of `error` if there is one. Never raises: a line that cannot
    be logged is lost, and no more."""
    try:
        log.log(level, text, *arguments, exc_info=error)
    except BaseException:
        return
