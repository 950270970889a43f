"""The examples of docs/testing.md, run as they stand there."""

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parkade.testing import TestEngine

MANUAL = Path(__file__).parents[3] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.findall(r"def (test_\w+)", block))
def test_an_example_of_the_manual_holds(block: str, parkade_engine: TestEngine) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, MANUAL.name, "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == block.count("def test_")
    for test in tests:
        call(test, parkade_engine)


def call(test: Callable[..., Any], engine: TestEngine) -> None:
    """As pytest would, with the one fixture that the manual uses."""
    given = {"parkade_engine": engine} if inspect.signature(test).parameters else {}
    result = test(**given)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_the_manual_has_examples_to_be_run() -> None:
    assert len(BLOCKS) >= 8
