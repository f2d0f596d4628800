"""Fixtures of the engine's tests: they need the native build and a C++ compiler, no PyTorch."""

import os
from pathlib import Path

import pytest

pytest.importorskip("dtr_alloc._core", reason="needs the native build: setup.py build_ext")

from native_fixtures import ROOT, compile_cpp, fake_cuda, fake_cuda_library, load_cpp, record
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


@pytest.fixture(scope="session")
def learn(tmp_path_factory):
    """The FFI and the library of learn.cpp."""
    parts = ("learn/layout", "learn/step_log", "policy/step_detector")
    sources = [ROOT / "tests/native/learn.cpp", *(ROOT / f"native/{part}.cpp" for part in parts)]
    declarations = """
        typedef struct { uint64_t begin, end, size_bytes; } lifetime;
        typedef struct { uint64_t begin, end; } obstacle;
        uint64_t layout_of(const lifetime *, uint64_t, const obstacle *, uint64_t, uint64_t limit,
                           uint64_t *addresses);
        uint64_t gap_in(const obstacle *busy, uint64_t count, uint64_t size_bytes);
        uint64_t nowhere(void);
        void repetition_of(const int64_t *, uint64_t, uint64_t *);
        void begins(const uint64_t *, uint64_t, const uint64_t *, uint64_t, uint8_t *);
    """
    return load_cpp(sources, tmp_path_factory.mktemp("learn") / "liblearn.so", declarations)


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
