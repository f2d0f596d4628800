"""Fixtures of the engine's tests: they need the native build and a C++ compiler, no PyTorch."""

import os
from pathlib import Path

import pytest

pytest.importorskip("dtr_alloc._core", reason="needs the native build: setup.py build_ext")

from native_fixtures import compile_cpp, fake_cuda, fake_cuda_library, record
from native_pool import NativePool
from stream_toy import make_stream_toy
from toy import PAGE, Toy

__all__ = ["fake_cuda", "fake_cuda_library", "make_stream_toy", "record"]


@pytest.fixture(scope="session")
def counted_new(tmp_path_factory) -> Path:
    """An operator new that counts, and fails on request, for a process that loads it first."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer brings its operator new")
    library = tmp_path_factory.mktemp("counted") / "counted_new.so"
    return compile_cpp([Path(__file__).parent / "counted_new.cpp"], library, "-shared", "-fPIC")


@pytest.fixture
def make_toy():
    """Makes engines on host memory, with a budget in pages. At the end their tensors are released,
    and nothing is left of them."""
    made = []

    def make(pages=64, kind=Toy, driver="host", chunk=0, placement=0, **options):
        pool = NativePool(driver, budget=pages * PAGE, chunk=chunk, placement=placement)
        made.append(kind(pool, **options))
        made[-1].verifies = True
        return made[-1]

    yield make
    for toy in made:
        toy.finish()


@pytest.fixture
def toy(make_toy):
    """An engine on 64 pages of host memory."""
    return make_toy()
