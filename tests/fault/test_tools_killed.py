"""Tools that are killed before any step of theirs: nothing that was there is lost, what was half
made is told from what is whole, and the same command again does the work."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.harm_template import KILLED, build_templates
from kit.harm_template import tickets_of as listed
from kit.killed_tools import KILLED_TOOLS, ToolRunner
from kit.one_life import small_limits
from parkade import ConfigError, ParkadeError, open_readonly
from parkade.testing import TestEngine

STEPS_TRIED = 0 if os.environ.get("HARMS") else 9  # of each tool; 0: all


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("templates")
    build_templates(base)
    return base / KILLED


@pytest.fixture(scope="module")
def runner(source: Path) -> Iterator[ToolRunner]:
    runner = ToolRunner(source)
    yield runner
    runner.close()


def tickets_in(path: Path) -> dict[str, str]:
    """As an engine finds them that opens it, and runs nothing."""
    with small_limits(), TestEngine(path, keep_done=None) as engine:
        assert {shard.status for shard in engine.stats().shards} == {"open"}
        return listed(engine)


def seen(path: Path) -> dict[str, str]:
    with small_limits(), open_readonly(path) as reader:
        return listed(reader)


def image_of(path: Path) -> dict[str, bytes]:
    files = (each for each in path.rglob("*") if each.is_file() and each.name != "lock.mdb")
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


@pytest.mark.parametrize("tool", KILLED_TOOLS)
def test_a_tool_that_is_killed_before_any_step_costs_nothing_and_can_be_run_again(
    source: Path, runner: ToolRunner, tmp_path: Path, tool: str
) -> None:
    before, image = seen(source), image_of(source)
    steps, code = runner.run(tool, tmp_path / "whole")
    assert code == 0
    stride = max(1, steps // STEPS_TRIED) if STEPS_TRIED else 1
    for step in range(1, steps + 1, stride):
        target = tmp_path / f"{step}"
        assert runner.run(tool, target, die_at=step) == (step, -signal.SIGKILL)
        assert image_of(source) == image, step
        if tool == "export":
            continue
        if target.exists():
            assert seen(target) == before, step
        partial = target.with_name(f"{target.name}.partial")
        if partial.exists():
            assert_half_made_or_whole(partial, before)
        finish(runner, tool, target, partial)
        assert tickets_in(target) == before, step
        left = [each.name for each in target.rglob("*.fresh")]
        assert left == [] and not partial.exists(), step


def assert_half_made_or_whole(partial: Path, before: dict[str, str]) -> None:
    """It is no directory yet, and that is told; or it is one, and lacks its name alone."""
    try:
        assert seen(partial) == before
    except ConfigError as error:
        assert error.code == "PK-111"
        assert str(partial) in str(error)


def finish(runner: ToolRunner, tool: str, target: Path, partial: Path) -> None:
    """The same command again."""
    if target.exists() and tool != "compact":
        return
    _, code = runner.run(tool, target)
    if code:
        # A copy that is whole is not thrown away unasked.
        assert (partial / "manifest.json").exists()
        partial.rename(target)


def test_a_directory_that_a_killed_copy_left_is_refused_by_engines(tmp_path: Path) -> None:
    partial = tmp_path / "copy.partial"
    (partial / "house").mkdir(parents=True)
    (partial / "lock").write_bytes(b"")
    with pytest.raises(ParkadeError, match=r"copy\.partial.*\[PK-111\]"):
        TestEngine(partial, durability="disk").start()
