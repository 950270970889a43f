"""A search by what inputs reach, where atheris is installed: `make fuzz TARGET=rows GUIDED=1`."""

import os
import sys
from importlib import import_module
from pathlib import Path

__all__ = ["search_guided"]

MEMORY_MB_MAX = 2_048


def search_guided(name: str, seconds: float) -> int:
    """Ends the process, as atheris does, with its exit code; 2 where atheris is not installed.

    Inputs that reach something new are kept in build/fuzz, and the next search begins with them.
    One that fails is there as a file `crash-...`; `make fuzz TARGET= BYTES=` takes its hex.
    """
    try:
        atheris = import_module("atheris")
    except ImportError:
        print("atheris is not installed: pip install --group fuzz (Linux)", file=sys.stderr)
        return 2
    # Before anything of ours is imported: what is there already cannot be watched.
    with atheris.instrument_imports(include=["parkade"]):
        from fuzz.targets import TARGETS
    target = TARGETS[name]
    kept = Path("build/fuzz") / name
    kept.mkdir(parents=True, exist_ok=True)
    options = [
        sys.argv[0], f"-max_total_time={int(seconds)}", f"-max_len={target.bytes_max}",
        f"-artifact_prefix={kept}/", f"-rss_limit_mb={MEMORY_MB_MAX}", os.fspath(kept),
    ]  # fmt: skip
    atheris.Setup(options, target.run)
    atheris.Fuzz()
    return 0
