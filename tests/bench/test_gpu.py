"""The benchmark for a GPU, walked through on the CPU: every part runs, and says what it promises.

The numbers mean nothing: this is for nobody to spend a GPU's time on a mistake in these scripts.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import python

pytest.importorskip("torch", reason="torch is not installed here")

from bench.gpu.__main__ import PARTS
from bench.gpu.largest_batch import closer, largest
from bench.gpu.part import met

ROOT = Path(__file__).parents[2]
FACTS = {"dtr_alloc", "torch", "python", "device", "driver", "cuda", "cudnn", "commit", "command"}
ROWS = {
    "same_bits": {"job", "fraction", "outcome", "repeats_itself", "warnings", "tensors"},
    "tests": {"test", "outcome"},
    "step_time": {"job", "way", "step_seconds", "host_seconds", "ratio", "goals"},
    "peak": {"job", "budget_bytes", "context_bytes", "driver_peak_bytes", "above_bytes"},
    "bandwidth": {"way", "size_mib", "gigabytes_per_second"},
    "largest_batch": {"job", "way", "largest_batch", "trials"},
    "waits": {"job", "way", "steps", "waits", "calls"},
}
"""What the first row of each part has, at least."""


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what all parts say, in one run."""
    out = tmp_path_factory.mktemp("gpu")
    python("-m", "bench.gpu", "--dry-run", "--out", out, "--seconds", "86400", cwd=ROOT)
    return out


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_dry_run_of_a_part(part: Any, dry_run: Path) -> None:
    document = json.loads((dry_run / f"gpu_{part.name}.json").read_text())
    assert document.keys() >= FACTS
    assert document["dry_run"]
    found = document["parts"][part.name]
    assert found["status"] == "done"
    first = next(row for row in found["rows"] if "skipped" not in row)
    assert first.keys() >= ROWS[part.name]
    assert not [row for row in found["rows"] if "error" in row]


def test_without_a_device_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import torch; torch.cuda.is_available = lambda: False\n"
    code += f"import sys; sys.argv = ['bench.gpu', '--out', {str(out)!r}]\n"
    code += "from bench.gpu.__main__ import main; main()"
    assert "no CUDA device" in python("-c", code, cwd=ROOT, status=2).stderr
    assert not out.exists()


def test_a_part_that_runs_out_of_time_keeps_its_rows(tmp_path: Path) -> None:
    options = ("--dry-run", "--out", tmp_path, "--part", "step_time", "--seconds", "0")
    python("-m", "bench.gpu", *options, cwd=ROOT, status=1)
    found = json.loads((tmp_path / "gpu_step_time.json").read_text())["parts"]["step_time"]
    assert found["status"] == "not started"
    assert found["error"] == "no time was left"


def test_the_largest_batch_lies_between_two_that_were_tried() -> None:
    def found(*batches: int) -> list[dict[str, Any]]:
        return [{"batch": b, "outcome": "trains" if b <= 150 else "out of memory"} for b in batches]

    assert largest(found(64, 128, 192, 256)) == 128
    assert closer(found(64, 128, 192, 256), 3) == [144, 160, 176]
    assert closer(found(64, 128), 3) == [256]
    assert closer(found(200, 400), 3) == [50, 100, 150]


def test_a_goal_counts_where_its_number_is_there() -> None:
    assert met({"ratio": 1.0, "goals": {"ratio": ["<=", 1.01]}})
    assert not met({"ratio": 3.0, "goals": {"ratio": [">=", 4.0]}})
    assert met({"ratio": None, "goals": {"ratio": ["<=", 1.01]}}) is None
