"""How numbers, spans and names are written in what people read: errors, log lines, the CLI.

Pure text; it knows nothing of tickets.
"""

from collections.abc import Iterable

__all__ = [
    "brief",
    "bytes_text",
    "closest",
    "count_text",
    "shown",
    "shown_error",
    "span_text",
]

_SPAN_UNITS = (
    ("y", 365 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
)
SHOWN_CHARS_MAX = 80


def span_text(ms: int) -> str:
    """A span in its two largest units: `3 m 12 s`, `41 min`, `2 y 41 d`, `0.4 s`, `12 ms`."""
    if ms < 0:
        return f"-{span_text(-ms)}"
    if ms < 100:
        return f"{ms} ms"
    if ms < 10_000 and ms % 1_000:
        return f"{ms / 1_000:.1f} s".replace(".0 s", " s")
    for place, (unit, size) in enumerate(_SPAN_UNITS):
        count, rest = divmod(ms, size)
        if count:
            smaller, smaller_size = _SPAN_UNITS[min(place + 1, len(_SPAN_UNITS) - 1)]
            part = rest // smaller_size
            if not part:
                return f"{count} {unit}"
            return f"{count} {'m' if unit == 'min' else unit} {part} {smaller}"
    return "0 s"


def bytes_text(count: int, *, binary: bool = False) -> str:
    """A size: `640 bytes`, `4.1 MB`, `12 MB`; `binary` for what is counted so: `8.0 GiB`."""
    step = 1_024 if binary else 1_000
    if count < step:
        return f"{count} bytes"
    size, units = count / step, ["TB", "GB", "MB"]
    unit = "kB"
    while size >= step - 0.5 and units:
        size, unit = size / step, units.pop()
    if binary:
        unit = f"{unit[0].upper()}iB"
    return f"{size:.1f} {unit}" if size < 9.95 else f"{size:.0f} {unit}"


def count_text(count: int) -> str:
    """A count in groups of three: `1 204`."""
    return f"{count:,}".replace(",", " ")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one was most likely meant to be, if any is near."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def brief(text: str) -> str:
    """A name for people: no more than the front of one that is none."""
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def shown(value: object) -> str:
    """A value as a person may read it in one line: its repr, cut, and never an exception."""
    try:
        # Bounded before repr() where that is cheap: the repr of a huge text is as huge.
        text = repr(value[:SHOWN_CHARS_MAX] if isinstance(value, str | bytes) else value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr() raised {type(error).__name__}>"
    text = text.replace("\n", " ")
    return brief(text)


def shown_error(error: BaseException) -> str:
    """One line about an error: its type and text, and never an exception."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be shown"
    name = type(error).__name__
    return f"{name}: {text}" if text else name
