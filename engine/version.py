"""Which parkade this is, and the newest directory format that it reads."""

from parkade.store.manifest import FORMAT

__all__ = ["FORMAT_MAX", "VERSION"]

VERSION = "0.1.0"
FORMAT_MAX = FORMAT
