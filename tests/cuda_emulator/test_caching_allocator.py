"""The model of PyTorch's caching allocator does what the real one does, event by event.

Real ones record their own history here: every allocation's place and every segment. Where a
variant is marked as kept, its history lies in tests/data/caching for the tests that have no CUDA
build of torch; KEEP_HISTORIES=FOLDER writes those of this torch anew.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from emulated import run

try:
    import torch

    TIES_BY_ADDRESS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
except ImportError:  # the tests are skipped
    TIES_BY_ADDRESS = False

JOBS = Path(__file__).parent / "caching_jobs.py"
MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"


class Variant(NamedTuple):
    job: str
    settings: str = ""
    memory: int = 4096 * MIB
    fraction: float | None = None
    kept: bool = False


VARIANTS = {
    "plain": Variant("brief", kept=True),
    "plain, long": Variant("mixed"),
    "plain, training": Variant("train"),
    "plain, tight": Variant("brief", memory=128 * MIB, kept=True),
    "plain, long and tight": Variant("large", memory=420 * MIB),
    "rounded to eighths": Variant("mixed", "roundup_power2_divisions:8"),
    "no large splits": Variant("brief", "max_split_size_mb:20", 128 * MIB, kept=True),
    "no large splits, long": Variant("large", "max_split_size_mb:32", 420 * MIB),
    "collecting": Variant("brief", "garbage_collection_threshold:0.7", 256 * MIB, 0.5, kept=True),
    "collecting, long": Variant("large", "garbage_collection_threshold:0.7", 840 * MIB, 0.5),
    "expandable": Variant("brief", EXPANDABLE, 128 * MIB, kept=True),
    "expandable, long": Variant("large", EXPANDABLE, 420 * MIB),
    "expandable, a share of the device": Variant("large", EXPANDABLE, 840 * MIB, 0.5),
    "expandable, training": Variant("train", EXPANDABLE),
}

TOLD: dict[str, Callable[[str], dict[str, Any]]] = {
    "": lambda _: {},
    "roundup_power2_divisions": lambda value: {"roundup_power2_divisions": int(value)},
    "max_split_size_mb": lambda value: {"max_split_bytes": int(value) * MIB},
    "garbage_collection_threshold": lambda value: {"collect_threshold": float(value)},
    "expandable_segments": lambda _: {"expandable": 1},
}
"""What the model is told of a setting."""


def recorded(folder, variant):
    """The trace of a run, and what the model is to be told."""
    from dtr_alloc.fragment import torch_snapshot

    snapshot = folder / "snapshot.pickle"
    fraction = [] if variant.fraction is None else [variant.fraction]
    done = run(
        *(JOBS, variant.job, snapshot, *fraction),
        settings=variant.settings,
        memory=variant.memory,
        chunk=2 * MIB,
    )
    name, _, value = variant.settings.partition(":")
    told = {**TOLD[name](value), "budget_bytes": variant.memory}
    if variant.fraction is not None:
        told |= {"budget_bytes": int(variant.memory * variant.fraction), "budget_is_fraction": 1}
    if TIES_BY_ADDRESS:
        told["ties_by_address"] = 1
    return torch_snapshot.read(snapshot), told, done.output


@pytest.mark.parametrize("name", VARIANTS)
def test_every_place_and_segment_is_as_in_a_real_one(tmp_path, name):
    from fidelity import assert_same

    trace, told, output = recorded(tmp_path, VARIANTS[name])
    assert output == ""
    assert assert_same(trace, **told) >= 500
    if VARIANTS[name].kept and (folder := os.environ.get("KEEP_HISTORIES")):
        keep(trace, told, Path(folder), name)


def keep(trace, told, folder, name):
    from dtr_alloc.traces import trace_file

    version = torch.__version__.split("+")[0]
    trace.time_ns[:] = type(trace.time_ns)("q", bytes(8 * len(trace)))  # hard to compress
    trace.meta = {"source": "torch", "time_unit": "ns", "torch": version, "model": told}
    path = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{version}.trace"
    trace_file.write(trace, path)


def test_memory_runs_out_at_the_request_that_the_model_names(tmp_path):
    from fidelity import run_model

    from dtr_alloc.traces.trace import Kind

    free, told, _ = recorded(tmp_path, Variant("brief"))
    told["budget_bytes"] = 112 * MIB
    model = run_model(free, "pytorch", **told)
    assert not model.completed
    trace, _, output = recorded(tmp_path, Variant("brief", memory=112 * MIB))
    assert output == "out of memory\n"
    served = sum(kind == Kind.ALLOCATE for kind in trace.kind)
    assert served == sum(kind == Kind.ALLOCATE for kind in free.kind[: model.failed_event])
