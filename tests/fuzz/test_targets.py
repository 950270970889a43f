"""Every target with some bytes, the same in each run; `make fuzz` goes on from there."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_documented_errors_comes_of_any_bytes(name: str) -> None:
    run, bytes_max, examples = TARGETS[name]

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=bytes_max))
    def search(data: bytes) -> None:
        run(data)

    search()
