"""Builds the core and the bridge for the python that runs this, as quickly as the machine can.

    python build.py FOLDER

A machine with a GPU is often paid by the minute, may have no internet, and need not have what an
installation needs. So FOLDER becomes a tree that can be used as it is: links to the sources, and
the core, compiled by as many compilers as there are processors. Needs cffi, a C++ compiler and
python's header files. The bridge to PyTorch's CUDA allocator is compiled beside it into its cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("allocator", "native", "bench", "tests", "docs", "pyproject.toml", "README.md")
OBJECTS = "objects"


def link(tree: Path) -> None:
    """The tree of links. The package is a real folder, because the compiled core comes into it."""
    package = tree / "dtr_alloc"
    package.mkdir(parents=True, exist_ok=True)
    links = {tree / part: ROOT / part for part in PARTS}
    links |= {
        package / path.name: path
        for path in (ROOT / "dtr_alloc").iterdir()
        if not path.name.startswith(("_core.", "_lab.")) and path.name != "__pycache__"
    }
    links |= {package / "native": ROOT / "native"}
    for place, target in links.items():
        place.unlink(missing_ok=True)
        place.symlink_to(target)


def compiler() -> str:
    """The C++ compiler. Raises SystemExit without one, or without python's headers."""
    sys.path.insert(0, str(ROOT))
    from dtr_alloc import compiler

    found = compiler.find()
    if found is None:
        raise SystemExit("make gpu: there is no C++ compiler (g++) here")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise SystemExit(f"make gpu: python's headers are not here: {header}")
    return found


def run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"make gpu: failed: {' '.join(command)}\n{done.stderr[-4000:]}")


def build_core(tree: Path, cxx: str, pool: ThreadPoolExecutor) -> None:
    """Compiles what changed and links it into the tree."""
    try:
        from native import build_core
    except ImportError as error:
        raise SystemExit(
            f"make gpu: {sys.executable}: {error}. WHEELS=folder names a folder with wheels of "
            "cffi and pycparser for it"
        ) from None

    objects = tree.parent / OBJECTS
    objects.mkdir(parents=True, exist_ok=True)
    generated = objects / "_core.cpp"
    build_core.ffibuilder.emit_c_code(str(generated))
    include = [f"-I{path}" for path in (*build_core.INCLUDE, sysconfig.get_path("include"))]
    headers = [path for name in ("native", "allocator") for path in (ROOT / name).rglob("*.h")]
    newest = max(path.stat().st_mtime for path in headers)
    compiled: list[Future[None]] = []
    names = []
    for source in [generated, *(ROOT / path for path in build_core.sources())]:
        output = objects / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")
        names.append(str(output))
        if output.exists() and output.stat().st_mtime > max(newest, source.stat().st_mtime):
            continue
        flags = [*build_core.compile_args(), "-fPIC", *include]
        compiled.append(pool.submit(run, [cxx, *flags, "-c", str(source), "-o", str(output)]))
    for one in compiled:
        one.result()
    target = tree / "dtr_alloc" / "_core.abi3.so"
    run([cxx, "-shared", *names, "-o", str(target), *build_core.link_args()])


def build_bridge(tree: Path, device: str) -> None:
    """Into the cache that DTR_ALLOC_CACHE names."""
    code = f"from dtr_alloc.torch.bridge import build; build({device!r})"
    environ = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"make gpu: the bridge was not built:\n{done.stderr[-4000:]}")


def main(tree: Path, device: str) -> None:
    start = time.monotonic()
    link(tree)
    cxx = compiler()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        bridge = pool.submit(build_bridge, tree, device)
        build_core(tree, cxx, pool)
        bridge.result()
    print(f"make gpu: core and bridge are built ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2])
