"""Tests on CUDA. Where there is none they are collected and skipped, with the reason.

GPU_TESTS_DEVICE=emulated runs them over the stand-in for CUDA (`make cuda-emulated`), without what
only a GPU has. GPU_TESTS_DEVICE=cpu runs those that CUDA has no part in on the CPU, in this
process, which is what the dry run of `make gpu` does: it finds mistakes in the tests, and says
nothing of a GPU.
"""

import importlib.util
from pathlib import Path

import pytest
from own_process import BACKEND, emulated

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


def why_not() -> str | None:
    """What keeps these tests from running here."""
    if BACKEND == "emulated":
        return emulated.why_not()
    try:
        import dtr_alloc._core  # noqa: F401
        import torch
    except ImportError as error:
        return str(error)
    if BACKEND == "cuda" and not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device here"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    emulated.skip(items, Path(__file__).parent, why_not)
