"""The bound that no schedule of an op log goes below (bench/studies/floor.py)."""

import pytest

from bench.studies.floor import least_bytes
from bench.studies.log import Log


@pytest.mark.parametrize(
    ("workspace", "beside"),
    [
        ([], 30),
        (["+8", "=0", "+32", "-0"], 70),
        (["+64", "-0", "=0"], 64),
        (["+64", "-0"], 64),
        (["+16", "-0"], 30),
    ],
    ids=["its result alone", "beside the result", "freed before it", "and after", "smaller"],
)
def test_an_operator_needs_what_it_reads_makes_and_allocates_meanwhile(
    workspace: list[str], beside: int
) -> None:
    log = Log()
    log.constant("c", 100)
    log.call("c", {"x": 20})
    log.call("x", {"y": 30}, workspace=workspace)
    assert least_bytes(log.program) == 100 + 20 + beside
