"""Asked for a budget on CUDA that it cannot have, dtr_alloc says why and leaves nothing behind.

Needs torch, any build, and the core; no GPU. Each case is a process of its own, because what a
refusal must not leave behind are things that a process has once.
"""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")
pytest.importorskip(
    "dtr_alloc._core", reason="the core is not built here (pip install -e .)", exc_type=ImportError
)

USABLE = """
with dtr_alloc.session(budget="unlimited", device="cpu"):
    made = torch.ones(1000) + 1
    assert dtr_alloc.evict(made)
    assert made.sum().item() == 2000
    dtr_alloc.check_invariants()
print("usable")
"""
"""Trains nothing, but needs allocator, recorder and rematerialization."""


def python(code, **environ):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DTR_ALLOC_")}
    keep = {key: os.environ[key] for key in ("DTR_ALLOC_CACHE", "CXX") if key in os.environ}
    return subprocess.run(
        [sys.executable, "-c", "import torch\nimport dtr_alloc\n" + code],
        env={**clean, **keep, "CUDA_VISIBLE_DEVICES": "", **environ},
        capture_output=True,
        text=True,
    )


def refusal(error, prepare=""):
    """Code that enables for CUDA, prints the refusal, and then uses the CPU."""
    return (
        f"{prepare}\n"
        "try:\n"
        "    dtr_alloc.enable(budget='1GiB', device='cuda')\n"
        f"except dtr_alloc.{error} as error:\n"
        "    print(error)\n"
        "assert not dtr_alloc.is_enabled()\n" + USABLE
    )


def lines(result):
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has CUDA")
def test_a_cpu_build_of_pytorch_is_named_as_what_is_missing():
    message, usable = lines(python(refusal("DriverError")))
    assert f"PyTorch {torch.__version__} is built without CUDA" in message
    assert usable == "usable"


def test_a_machine_without_a_device_is_refused_with_the_drivers_reason():
    # As on a CUDA build: the driver's library is missing, or it hides all devices.
    message, usable = lines(python(refusal("DriverError", "torch.version.cuda = '13.0'")))
    assert message.startswith("device 'cuda': ")
    assert "libcuda" in message or "CUDA_ERROR" in message or "no device" in message
    assert usable == "usable"


def test_enabling_after_the_first_cuda_call_is_refused():
    in_use = "torch.cuda.is_initialized = lambda: True"
    message, usable = lines(python(refusal("StateError", in_use)))
    assert "enable dtr_alloc before the first CUDA call" in message
    assert usable == "usable"


def test_auto_is_too_late_on_cuda_as_well():
    code = (
        "torch.cuda.is_initialized = lambda: True\n"
        "try:\n"
        "    dtr_alloc.enable(budget='1GiB')\n"
        "except dtr_alloc.StateError as error:\n"
        "    print(error)\n"
        "assert not dtr_alloc.is_enabled()\n"
    )
    (message,) = lines(python(code))
    assert "enable dtr_alloc before the first CUDA call" in message


def test_auto_takes_the_cpu_where_there_is_no_cuda_and_initializes_nothing():
    code = (
        "dtr_alloc.enable(budget='unlimited')\n"
        "made = torch.ones(1000) + 1\n"
        "print(dtr_alloc.evict(made), torch.cuda.is_initialized())\n"
        "dtr_alloc.disable()\n"
    )
    assert lines(python(code)) == ["True False"]


def test_a_job_that_asks_for_cuda_by_the_environment_ends_with_the_reason():
    result = python("print('ran')", DTR_ALLOC_BUDGET="1GiB", DTR_ALLOC_DEVICE="cuda")
    if "ran" in result.stdout:
        pytest.skip("the entry point is not installed here (pip install -e .)")
    assert result.returncode == 1
    assert "device 'cuda'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
