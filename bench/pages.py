"""Tables in the documentation that a bench writes itself: nobody copies figures by hand.

A page has a place for each table, between two comments that name it; what lies there is replaced.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"


def put(page: Path, name: str, text: str) -> None:
    """Puts the text into the page's place of that name. Raises `LookupError` if it has none."""
    whole = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    written, count = place.subn(lambda found: f"{found[1]}\n{text.strip()}\n\n{found[2]}", whole)
    if count != 1:
        raise LookupError(f"{page.name} has {count} places for {name}")
    page.write_text(written, encoding="utf-8")
