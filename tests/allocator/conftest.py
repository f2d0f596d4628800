"""Fixtures of the allocator's tests: they need the native build and a C++ compiler, no GPU."""

import pytest

pytest.importorskip("dtr_alloc._core", reason="needs the native build: setup.py build_ext")

from native_fixtures import DRIVERS, core_object, fake_cuda, fake_cuda_library, record
from native_pool import NativePool

__all__ = ["core_object", "fake_cuda", "fake_cuda_library", "record"]


@pytest.fixture(params=DRIVERS)
def driver(request):
    """Each driver in turn, and fixed pools of two; those of cuda on the stand-in."""
    if request.param.startswith("cuda"):
        request.getfixturevalue("fake_cuda")
    return request.param


@pytest.fixture
def maps_chunks(driver):
    """For what fixed pools cannot do: chunks that move to where a block needs them."""
    if driver.endswith("-fixed"):
        pytest.skip("a fixed pool has no addresses to which chunks could move")


@pytest.fixture
def has_slabs(driver):
    if driver.endswith("-fixed"):
        pytest.skip("a fixed pool has no slabs")


@pytest.fixture
def chunk(driver):
    """The size of the chunks of make_pool."""
    return 2 << 20 if driver.startswith("cuda") else 64 << 10


@pytest.fixture
def make_pool(driver, chunk):
    """Makes pools with this driver and chunks of one size; the budget is in chunks."""

    def make(chunks=64, **options):
        options.setdefault("chunk", chunk)
        pool = NativePool(driver, budget=chunks * chunk, **options)
        pool.chunk = chunk
        pool.has_memory = driver not in ("simulated", "counted")
        pool.is_fixed = driver.endswith("-fixed")
        return pool

    return make


@pytest.fixture
def pool(make_pool):
    """A pool of 8 chunks."""
    with make_pool(8) as pool:
        yield pool
