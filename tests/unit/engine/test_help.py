"""What `help()` shows of the public names, and what a type checker and a typo are told."""

import inspect
import pydoc
from pathlib import Path

import pytest

import parkade
from kit.engines import make
from parkade import ConfigError, Engine


def test_help_tells_of_every_public_name() -> None:
    assert "Engine" in pydoc.plain(pydoc.render_doc(parkade))
    for name in parkade.__all__:
        value = getattr(parkade, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert name in pydoc.plain(pydoc.render_doc(value))


def test_a_bad_option_of_the_engine_is_called_by_its_name() -> None:
    bad: list[tuple[str, object]] = [
        ("default_retry", "3"),
        ("keep_done", "1 day"),
        ("lock_wait", "soon"),
        ("shards", 0),
    ]
    for name, value in bad:
        with pytest.raises(ConfigError) as caught:
            Engine("never-made", **{name: value})  # type: ignore[arg-type]
        assert f"Engine({name}=" in str(caught.value)


def test_what_is_no_call_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:

        @engine.task
        def work(n: int) -> int:
            return n

        for wrong in (7, work, work.submit(1)):
            with pytest.raises(ConfigError, match="it takes calls, like task"):
                engine.submit_many([work.call(2), wrong])  # type: ignore[list-item]
        assert engine.stats().ready == 1, "the one that was submitted by itself"
