"""A figure over a size, drawn as an SVG file: a few lines, a legend, no library.

The colours read on white and on black, and the lines differ in their dashes too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 50, 60
COLOURS = ("#3778bf", "#d95f02", "#1b9e77", "#a6558f", "#888888", "#c0a000")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "1 2", "12 4")
GREY = "#888888"
GRID_LINES = 5


@dataclass(frozen=True)
class Plot:
    """What to draw: lines of (x, y) by name, x on a scale of powers; y begins at 0."""

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def svg(plot: Plot) -> str:
    """The file's text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13" fill="{GREY}">',
        text(WIDTH / 2, 24, plot.title, 'text-anchor="middle" font-size="16"'),
        *axes(plot),
        *(part for rank, name in enumerate(plot.lines) for part in line(plot, rank, name)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def from_json(found: Mapping[str, Any]) -> Plot:
    """A plot as a report's line has it."""
    lines = {
        name: [(float(x), float(y)) for x, y in points] for name, points in found["lines"].items()
    }
    return Plot(found["name"], found["title"], found["x"], found["y"], lines)


def axes(plot: Plot) -> Iterator[str]:
    """A grid, its numbers, and what they count."""
    top = y_top(plot)
    for step in range(GRID_LINES + 1):
        value = top * step / GRID_LINES
        y = y_of(plot, value)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity="0.3"/>'
        yield text(LEFT - 8, y + 4, f"{value:,.4g}", 'text-anchor="end"')
    for value in sorted({x for points in plot.lines.values() for x, _ in points}):
        yield text(x_of(plot, value), HEIGHT - BOTTOM + 22, f"{value:,.0f}", 'text-anchor="middle"')
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield text(middle, HEIGHT - 14, plot.x, 'text-anchor="middle"')
    yield text(LEFT - 60, TOP - 14, plot.y, "")


def line(plot: Plot, rank: int, name: str) -> Iterator[str]:
    """One line with its points, and its name in the legend."""
    colour, dash = COLOURS[rank % len(COLOURS)], DASHES[rank % len(DASHES)]
    points = [(x_of(plot, x), y_of(plot, y)) for x, y in plot.lines[name]]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'
    yield f'<polyline points="{path}" {style}/>'
    for x, y in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    y = TOP + 14 + 22 * rank
    left = WIDTH - RIGHT + 16
    yield f'<path d="M{left} {y - 4}h26" {style}/>'
    yield text(left + 34, y, name, "")


def text(x: float, y: float, words: str, style: str) -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def y_top(plot: Plot) -> float:
    """A round number that no point is above."""
    highest = max((y for points in plot.lines.values() for _, y in points), default=1.0) or 1.0
    power = math.pow(10, math.floor(math.log10(highest)))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= highest)


def y_of(plot: Plot, value: float) -> float:
    """Where a value stands."""
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / y_top(plot)


def x_of(plot: Plot, value: float) -> float:
    """Where a size stands, by its logarithm."""
    sizes = [math.log(x) for points in plot.lines.values() for x, _ in points]
    low, high = min(sizes), max(sizes)
    share = (math.log(value) - low) / (high - low) if high > low else 0.5
    return LEFT + 20 + (WIDTH - LEFT - RIGHT - 40) * share
