"""The cffi builds (API mode) of the compiled core, ``dtr_alloc._core``, and of ``dtr_alloc._lab``.

The core holds ``allocator/`` and ``native/``, but for ``native/lab/``. It links neither CUDA nor
PyTorch. The second has ``native/lab/``, for tests and studies: setup.py leaves it out of wheels.

Environment:
    DTR_ALLOC_BUILD: ``release`` (default), ``debug`` (assertions on, little optimization) or
        ``sanitize`` (as debug, with the address and undefined-behavior sanitizers; python must
        be started with libasan preloaded, as ``make sanitize`` does).
"""

import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "native" / "include"
BRIDGE = ROOT / "native" / "bridge"  # compiled on the user's machine (dtr_alloc/torch/bridge.py)
LAB = ROOT / "native" / "lab"
INCLUDE = [str(ROOT / folder) for folder in ("native", "native/include", "allocator")]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def headers(name: str = "dtr_alloc.h") -> list[Path]:
    """The C headers that this one includes, each behind those that it needs, and itself."""
    found: dict[Path, None] = {}
    for needed in re.findall(r'^#include "(.+)"$', (HEADERS / name).read_text(), re.MULTILINE):
        found |= dict.fromkeys(headers(needed))
    return [*found, HEADERS / name]


def declared(path: Path) -> str:
    """The part of a C header that cffi reads: what stands between the two CFFI marks."""
    return path.read_text().split("/* CFFI BEGIN */")[1].split("/* CFFI END */")[0]


def declarations() -> str:
    return "".join(map(declared, headers()[:-1]))


def sources() -> list[str]:
    """Paths of the core's C++ files, relative to the root as setuptools wants them."""
    files = [path for folder in ("allocator", "native") for path in (ROOT / folder).rglob("*.cpp")]
    others = {BRIDGE, LAB}
    return sorted(str(path.relative_to(ROOT)) for path in files if others.isdisjoint(path.parents))


def lab_sources() -> list[str]:
    """Those of the laboratory, with the one of the core that it needs: it shares no state."""
    files = sorted(str(path.relative_to(ROOT)) for path in LAB.glob("*.cpp"))
    return ["native/simulate/program.cpp", *files]


@functools.cache
def link_time_args() -> list[str]:
    """``-flto=auto``, unless the compiler (``CXX``, or g++) does not link what it compiles so, as
    where an image leaves out its link-time plugin: then none, and standard error says so."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text("int probe() { return 0; }\n")
        flags = ["-flto=auto", "-fPIC", "-shared", "-o", str(source.with_suffix(".so"))]
        command = [*compiler, *flags, str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return ["-flto=auto"]  # there is no such compiler, as the build will say
    if done.returncode == 0:
        return ["-flto=auto"]
    said = done.stderr.strip().splitlines()[:1]
    print(f"dtr_alloc: {compiler[0]} cannot optimize while linking {said}", file=sys.stderr)
    return []


def kind_args() -> list[str]:
    """For the compiler and the linker alike."""
    build = os.environ.get("DTR_ALLOC_BUILD", "release")
    kinds = {
        "release": ["-O3", "-g0", "-DNDEBUG"],
        "debug": ["-O1", "-g", "-UNDEBUG"],
        "sanitize": ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", *SANITIZERS],
    }
    if build not in kinds:
        raise ValueError(f"DTR_ALLOC_BUILD is {build!r}; allowed: {', '.join(kinds)}")
    # Without -flto a call from one file into another costs an operator 4 % more.
    return kinds[build] + (link_time_args() if build == "release" else [])


def compile_args() -> list[str]:
    common = ["-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    common.append("-fno-math-errno")  # else a loop over square roots is not vectorized
    return common + kind_args()


def link_args() -> list[str]:
    return ["-ldl", "-lpthread", *kind_args()]


def extension(name: str, header: str, declared: str, sources: list[str], *shared: FFI) -> FFI:
    """What cffi compiles. shared: whose types it knows."""
    ffi = FFI()
    for each in shared:
        ffi.include(each)
    ffi.cdef(declared)
    ffi.set_source(
        name,
        f'#include "{header}"\n',
        sources=sources,
        include_dirs=INCLUDE,
        source_extension=".cpp",
        extra_compile_args=compile_args(),
        extra_link_args=link_args(),
    )
    return ffi


ffibuilder = extension("dtr_alloc._core", "dtr_alloc.h", declarations(), sources())
lab = extension(
    "dtr_alloc._lab",
    "lab/dtr_lab.h",
    declared(HEADERS / "dtr" / "framework.h") + declared(LAB / "dtr_lab.h"),
    lab_sources(),
    ffibuilder,
)
