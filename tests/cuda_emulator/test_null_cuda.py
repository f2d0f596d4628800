"""Full-size jobs over a CUDA whose kernels compute nothing (bench/null_cuda): counts, no times."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "bench/results"

# What a step repeats at 70, 50 and 30 % of its activation memory, at most. Costs are those of the
# null device, so counts are the same in every run under torch 2.11.0: 189, 166, 296; 12, 28, 75;
# 28, 62, 179. The rest is for what other versions of torch and scores do otherwise.
MOST = {"gpt2_medium": (240, 210, 370), "resnet50": (20, 40, 100), "unet": (40, 80, 230)}


@pytest.fixture(scope="module", params=MOST)
def job(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def counts(job: str, tmp_path_factory: pytest.TempPathFactory) -> dict[float | None, dict]:
    """What a step of the job adds, by the fraction of its activation memory."""
    from bench.null_cuda import library
    from bench.null_cuda.__main__ import Trainers, measure

    folder: Path = tmp_path_factory.mktemp("null_cuda")
    with closing(Trainers(library.build(folder))) as trainers:
        trainers.calibrate()
        rows = list(measure(job, "marginal", trainers, steps=3, rounds=1))
    return {row["budget_fraction"]: row for row in rows}


def test_a_step_has_the_operators_that_it_had_on_a_device(job, counts):
    rows = json.loads((RESULTS / "gpu_step_time.json").read_text())["parts"]["step_time"]["rows"]
    (on_device,) = (
        row["added"]["recorded_ops"] / row["steps_added_up"]
        for row in rows
        if (row["job"], row.get("budget_fraction")) == (job, 0.7)
    )
    assert counts[0.7]["operators"] == on_device


def test_without_a_limit_nothing_is_evicted_or_mapped_and_nobody_waits(counts):
    row = counts[None]
    for name in ("rematerializations", "evictions", "searches", "mapped_chunks", "host_waits"):
        assert row[name] == 0, name
    assert sum(row["calls_an_operator"].values()) < 3


def test_a_step_repeats_no_more_than_a_bounded_number_of_operators(job, counts):
    for fraction, most in zip((0.7, 0.5, 0.3), MOST[job], strict=True):
        row = counts[fraction]
        assert 0 < row["rematerializations"] <= most
        assert row["searches"] <= 20 * most
        assert row["host_waits"] == 0


WORKSPACES = """
import sys, torch, dtr_alloc
dtr_alloc.enable(budget="32MiB", device="cuda", pool=sys.argv[1])
MIB = 1 << 20

def is_refused(ask):
    try:
        ask()
    except torch.OutOfMemoryError:
        return True
    return False

x = torch.empty(256, 256, device="cuda")
source = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
evictable = [source + i for i in range(10)]
before = dtr_alloc.stats()
assert is_refused(lambda: x @ x) == (sys.argv[1] == "strict")
after = dtr_alloc.stats()
if sys.argv[1] == "strict":
    assert after.beyond_requests == 0
else:
    assert after.beyond_requests == 1
    assert after.beyond_bytes == after.peak_beyond_bytes == 64 * MIB
    assert after.out_of_memory_errors == 0
    assert after.evictions == before.evictions, "evicting could not be enough"
    torch._C._cuda_clearCublasWorkspaces()
    assert dtr_alloc.stats().beyond_bytes == 0
    assert dtr_alloc.stats().beyond_seconds > 0
small = torch.empty(4, device="cuda")
for ask in (
    lambda: torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"),
    lambda: torch.ones(16 * MIB, device="cuda"),
    lambda: torch.cat([x] * 300),
    lambda: small.resize_(64 * MIB),
    lambda: torch.UntypedStorage(64 * MIB, device="cuda"),
    lambda: torch.cuda.caching_allocator_alloc(64 * MIB),
):
    assert is_refused(ask)
assert dtr_alloc.stats().beyond_requests == after.beyond_requests
assert dtr_alloc.stats().reserved_bytes <= 32 * MIB
if sys.argv[1] != "strict":
    dtr_alloc.set_budget("80MiB")
    x @ x
    after = dtr_alloc.stats()
    assert (after.beyond_requests, after.beyond_bytes) == (1, 0), "evicting was enough"
    assert after.evictions > before.evictions
dtr_alloc.check_invariants()
"""


@pytest.mark.parametrize("pool", ["chunk:auto", "strict"])
def test_only_a_workspace_is_served_beyond_the_budget_unless_it_is_strict(tmp_path, pool):
    from bench.null_cuda import library

    environ = {
        **os.environ,
        "LD_PRELOAD": str(library.build(tmp_path)),
        "CUBLAS_WORKSPACE_CONFIG": ":65536:1",  # 64 MiB
    }
    command = [sys.executable, "-W", "ignore", "-c", WORKSPACES, pool]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
