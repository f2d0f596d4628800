"""Fixtures of the allocator's tests: they need the native build and a C++ compiler, no GPU."""

import pytest

pytest.importorskip("dtr_alloc._core", reason="needs the native build: setup.py build_ext")

from native_fixtures import fake_cuda, fake_cuda_library
from native_pool import NativePool

__all__ = ["fake_cuda", "fake_cuda_library"]


@pytest.fixture(params=["host", "simulated", "cuda"])
def driver(request):
    """Each driver in turn; cuda on the stand-in."""
    if request.param == "cuda":
        request.getfixturevalue("fake_cuda")
    return request.param


@pytest.fixture
def make_pool(driver):
    """Makes pools with this driver and chunks of one size; the budget is in chunks."""
    chunk = 2 << 20 if driver == "cuda" else 64 << 10

    def make(chunks=64, **options):
        options.setdefault("chunk", chunk)
        pool = NativePool(driver, budget=chunks * chunk, **options)
        pool.chunk = chunk
        pool.has_memory = driver != "simulated"
        return pool

    return make
