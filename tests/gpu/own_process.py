"""A test whose body runs in a process of its own, where dtr_alloc is enabled before CUDA starts.

PyTorch cannot change its CUDA allocator once it is in use, so no two such tests can share one.
GPU_TESTS_DEVICE says on what it runs: `cuda`, a GPU; `emulated`, the stand-in for CUDA in
tests/cuda_emulator; `cpu`, this process, in a session, unless the test is about settings, some of
which a process has once, too.
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cuda_emulator"))
import emulated
from emulated import BACKEND, DEVICE


def own_process(
    budget: int | str = "unlimited",
    cuda_only: str | None = None,
    gpu_only: str | None = None,
    **settings: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a test. `budget` and `settings` are dtr_alloc.enable()'s.
    `cuda_only`: what of CUDA the test is about, which the CPU does not have; `gpu_only`: which the
    stand-in for CUDA does not have."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            if DEVICE == "cpu" and cuda_only:
                pytest.skip(f"the CPU has no {cuda_only}")
            if BACKEND == "emulated" and gpu_only:
                pytest.skip(f"the stand-in for CUDA has no {gpu_only}")
            if DEVICE != "cpu" or settings:
                run_elsewhere(body, arguments, budget, settings)
            else:
                run_here(body, arguments, budget)

        return test

    return decorate


def run_elsewhere(
    body: Callable[..., None],
    arguments: dict[str, Any],
    budget: int | str,
    settings: dict[str, Any],
) -> None:
    """Runs it in a new process; fails and skips as that says."""
    script = "import json, sys, {0}\n{0}.{1}.__wrapped__(**json.loads(sys.argv[1]))\n"
    done = emulated.run(
        script.format(body.__module__, body.__name__), json.dumps(arguments), budget=budget,
        stand_in=BACKEND == "emulated", **{"swap": "last-resort", **settings},
    )  # fmt: skip
    if "skipped" in done.report:
        pytest.skip(done.report["skipped"])


def run_here(body: Callable[..., None], arguments: dict[str, Any], budget: int | str) -> None:
    """Runs it in this process."""
    import torch

    import dtr_alloc

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with dtr_alloc.session(budget=budget, device=DEVICE):
            body(**arguments)
            dtr_alloc.check_invariants()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def busy(seconds: float = 0.1) -> None:
    """Keeps the current stream busy for about so long, so that the host runs ahead. Under the
    stand-in for CUDA all work is unfinished until somebody waits for it."""
    import torch

    if BACKEND != "emulated":
        torch.cuda._sleep(int(2e9 * seconds))
