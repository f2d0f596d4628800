"""The cffi build of the compiled core, ``dtr_alloc._core`` (API mode).

One extension holds ``allocator/`` and ``native/``. It links neither CUDA nor PyTorch.

Environment:
    DTR_ALLOC_BUILD: ``release`` (default) or ``debug`` (assertions on, no optimization).
"""

import os
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "native" / "dtr_alloc.h"


def declarations(header: str) -> str:
    """The part of the C header that cffi reads: what stands between the two CFFI marks."""
    return header.split("/* CFFI BEGIN */")[1].split("/* CFFI END */")[0]


def sources() -> list[str]:
    """Paths of the core's C++ files, relative to the root as setuptools wants them."""
    files = sorted((ROOT / "allocator").glob("*.cpp")) + sorted((ROOT / "native").glob("*.cpp"))
    return [str(path.relative_to(ROOT)) for path in files]


def compile_args() -> list[str]:
    build = os.environ.get("DTR_ALLOC_BUILD", "release")
    if build not in ("release", "debug"):
        raise ValueError(f"DTR_ALLOC_BUILD is {build!r}; allowed: 'release', 'debug'")
    common = ["-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    return common + (["-O3", "-DNDEBUG"] if build == "release" else ["-O1", "-g", "-UNDEBUG"])


ffibuilder = FFI()
ffibuilder.cdef(declarations(HEADER.read_text()))
ffibuilder.set_source(
    "dtr_alloc._core",
    '#include "dtr_alloc.h"\n',
    sources=sources(),
    include_dirs=[str(ROOT / "native"), str(ROOT / "allocator")],
    source_extension=".cpp",
    extra_compile_args=compile_args(),
    extra_link_args=["-ldl", "-lpthread"],
)
