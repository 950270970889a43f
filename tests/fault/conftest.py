"""The whole lives whose every call to the file layer is made to fail, or to be the last."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.one_life import lives, small_limits
from kit.sites import Site


@pytest.fixture(scope="module")
def few_tickets_fill_everything() -> Iterator[None]:
    with small_limits():
        yield


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the directories of two whole lives are."""
    return tmp_path_factory.mktemp("lived")


@pytest.fixture(scope="module")
def found(few_tickets_fill_everything: None, lived: Path) -> dict[Site, tuple[str, int]]:
    """The sites that those lives came by."""
    return lives(lived)
