"""A test whose body runs in a process of its own, where dtr_alloc is enabled before CUDA starts.

PyTorch cannot change its CUDA allocator once it is in use, so no two such tests can share one.
GPU_TESTS_DEVICE says on what it runs: `cuda`, a GPU; `emulated`, the stand-in for CUDA in
tests/cuda_emulator; `cpu`, this process, in a session, unless the test is about settings, some of
which a process has once, too.

    python own_process.py FILE TEST ARGUMENTS    what the process runs; arguments as JSON
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cuda_emulator"))
import emulated

BACKEND = os.environ.get("GPU_TESTS_DEVICE", "cuda")
DEVICE = "cpu" if BACKEND == "cpu" else "cuda"
SKIPPED = 77
SECONDS = 600  # ends what hangs


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
                run_elsewhere(body, arguments)
            else:
                run_here(body, arguments, budget, settings)

        test.own_budget, test.own_settings = budget, settings  # type: ignore[attr-defined]
        return test

    return decorate


def run_elsewhere(body: Callable[..., None], arguments: dict[str, Any]) -> None:
    """Runs it in a new process; fails and skips as that says."""
    file = sys.modules[body.__module__].__file__
    command = [sys.executable, __file__, str(file), body.__name__, json.dumps(arguments)]
    libraries = [emulated.library()] if BACKEND == "emulated" else []
    clean = emulated.environment(libraries)
    # Read by cuBLAS when it is first used; PyTorch asks for it in deterministic mode.
    clean["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.splitlines()[-1])
    if done.returncode != 0:
        pytest.fail(
            f"exit status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-4000:]}",
            pytrace=False,
        )


def run_here(
    body: Callable[..., None],
    arguments: dict[str, Any],
    budget: int | str,
    settings: dict[str, Any],
) -> None:
    """Runs it in this process."""
    import torch

    import dtr_alloc

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with dtr_alloc.session(budget=budget, device=DEVICE, **settings):
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


def main(file: str, name: str, arguments: str) -> None:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test = getattr(module, name)
    import dtr_alloc

    dtr_alloc.enable(budget=test.own_budget, device=DEVICE, **test.own_settings)
    test.__wrapped__(**json.loads(arguments))
    dtr_alloc.check_invariants()


def run() -> int:
    """The process's exit status."""
    try:
        if BACKEND != "emulated":
            main(*sys.argv[1:])
            return 0
        emulated.prepare()
        main(*sys.argv[1:])
        assert not any(emulated.seen().values()), emulated.seen()
    except pytest.skip.Exception as skipped:
        print(skipped.msg)
        return SKIPPED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    status = run()
    if BACKEND == "emulated":
        emulated.leave(status)
    sys.exit(status)
