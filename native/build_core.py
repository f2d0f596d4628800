"""The cffi build of the compiled core, ``dtr_alloc._core`` (API mode).

One extension holds ``allocator/`` and ``native/``. It links neither CUDA nor PyTorch.

Environment:
    DTR_ALLOC_BUILD: ``release`` (default), ``debug`` (assertions on, little optimization) or
        ``sanitize`` (as debug, with the address and undefined-behavior sanitizers; python must
        be started with libasan preloaded, as ``make sanitize`` does).
"""

import os
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "native" / "include" / "dtr_alloc.h"
BRIDGE = ROOT / "native" / "bridge"  # compiled on the user's machine (dtr_alloc/bridge.py)
INCLUDE = [str(ROOT / folder) for folder in ("native", "native/include", "allocator")]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def declarations(header: str) -> str:
    """The part of the C header that cffi reads: what stands between the two CFFI marks."""
    return header.split("/* CFFI BEGIN */")[1].split("/* CFFI END */")[0]


def sources() -> list[str]:
    """Paths of the core's C++ files, relative to the root as setuptools wants them."""
    files = [path for folder in ("allocator", "native") for path in (ROOT / folder).rglob("*.cpp")]
    return sorted(str(path.relative_to(ROOT)) for path in files if BRIDGE not in path.parents)


def compile_args() -> list[str]:
    build = os.environ.get("DTR_ALLOC_BUILD", "release")
    kinds = {
        "release": ["-O3", "-DNDEBUG"],
        "debug": ["-O1", "-g", "-UNDEBUG"],
        "sanitize": ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", *SANITIZERS],
    }
    if build not in kinds:
        raise ValueError(f"DTR_ALLOC_BUILD is {build!r}; allowed: {', '.join(kinds)}")
    common = ["-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    return common + kinds[build]


def link_args() -> list[str]:
    sanitizers = SANITIZERS if os.environ.get("DTR_ALLOC_BUILD") == "sanitize" else []
    return ["-ldl", "-lpthread", *sanitizers]


ffibuilder = FFI()
ffibuilder.cdef(declarations(HEADER.read_text()))
ffibuilder.set_source(
    "dtr_alloc._core",
    '#include "dtr_alloc.h"\n',
    sources=sources(),
    include_dirs=INCLUDE,
    source_extension=".cpp",
    extra_compile_args=compile_args(),
    extra_link_args=link_args(),
)
