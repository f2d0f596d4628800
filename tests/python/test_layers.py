"""The house stands as CONTRIBUTING.md says: includes and imports run downward only.

Reads the sources. Needs nothing, no compiler either; one test starts python.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH_HEADERS = re.compile(r"(torch|ATen|c10|caffe2)/")
CUDA_HEADERS = re.compile(r"cuda|cu(blas|dnn|fft|rand|solver|sparse)|nvrtc|nccl|driver_types")
MAY_IMPORT_TORCH = {
    *("recorder", "compiled", "kernels", "bridge", "runtime", "escapes", "purity", "journal"),
    "pins",
    *("refusals", "graphs"),
}
"""Modules of dtr_alloc that cannot be used without torch, and so may import it at their top."""


NATIVE = (
    *("include", "base", "graph", "policy", "eviction", "oplog", "toy", "run"),
    *("simulate", "schedule", "fragment", "api", "bridge"),
)
"""The folders of native/, the lowest layer first."""


def sources(folder):
    return sorted(path for suffix in ("h", "cpp") for path in (ROOT / folder).rglob(f"*.{suffix}"))


def includes(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def headers_of(folder):
    """The names by which a header of this folder can be included."""
    names = set()
    for path in sources(folder):
        relative = path.relative_to(ROOT / folder)
        names |= {path.name, str(relative), f"{folder}/{relative}"}
    return names


def broken(paths, rule):
    return [f"{p.relative_to(ROOT)}: {name}" for p in paths for name in includes(p) if rule(name)]


def test_the_allocator_includes_nothing_of_the_engine():
    of_native = headers_of("native") - headers_of("allocator")
    assert not broken(
        sources("allocator"), lambda name: name in of_native or name.startswith("../")
    )


def test_the_folders_of_native_are_layers():
    assert {path.name for path in (ROOT / "native").iterdir() if sources(path)} == set(NATIVE)

    def is_upward(path, name):
        folder = name.split("/")[0]
        return folder in NATIVE and NATIVE.index(folder) > NATIVE.index(path.parent.name)

    upward = [
        f"{path.relative_to(ROOT)}: {name}"
        for layer in NATIVE
        for path in sources(f"native/{layer}")
        for name in includes(path)
        if is_upward(path, name) and name != "run/engine.h"
    ]
    assert not upward


def test_the_core_knows_neither_torch_nor_cuda_headers_nor_python():
    core = sources("allocator")
    core += [path for path in sources("native") if ROOT / "native" / "bridge" not in path.parents]
    own = headers_of("allocator") | headers_of("native")
    assert not broken(
        core,
        lambda name: (
            TORCH_HEADERS.match(name)
            or name == "Python.h"
            or (name not in own and CUDA_HEADERS.match(name))
        ),
    )


def test_only_the_bridge_includes_torch():
    everything = [path for folder in ("allocator", "native", "tests") for path in sources(folder)]
    elsewhere = [path for path in everything if ROOT / "native" / "bridge" not in path.parents]
    assert not broken(elsewhere, TORCH_HEADERS.match)


def test_the_bridge_reaches_the_core_through_its_tables_only():
    of_core = (headers_of("allocator") | headers_of("native")) - headers_of("native/bridge")
    allowed = headers_of("native/include")
    assert not broken(
        sources("native/bridge"),
        lambda name: os.path.normpath(name).removeprefix("../") in of_core - allowed,
    )


def imports_at_the_top(path):
    """Modules that are imported when this one is: not those inside functions."""

    def walk(body):
        for node in body:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                yield base
                yield from (f"{base}.{alias.name}".replace("..", ".") for alias in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from walk(node.orelse)
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for part in ("body", "orelse", "handlers", "finalbody"):
                    yield from walk(getattr(node, part, None) or [])

    return list(walk(ast.parse(path.read_text(encoding="utf-8")).body))


def modules():
    return sorted((ROOT / "dtr_alloc").rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_only_the_modules_that_need_torch_import_it(path):
    if path.stem in MAY_IMPORT_TORCH:
        return
    names = imports_at_the_top(path)
    found = [name for name in names if re.match(r"torch(\.|$)", name)]
    # Who imports such a module at its top imports torch as well.
    found += [
        name
        for name in names
        if re.search(rf"^(dtr_alloc)?\.({'|'.join(MAY_IMPORT_TORCH)})$", name)
    ]
    assert not found, f"{path.stem} imports {found} at its top"


def test_only_core_imports_the_extension():
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            module = getattr(node, "module", None) or ""
            if "_core" in [name.rsplit(".")[-1] for name in (*names, module)]:
                found.append(path.stem)
    assert set(found) <= {"core"}


def test_importing_dtr_alloc_does_not_import_torch():
    code = (
        "import dtr_alloc, dtr_alloc._autoload, dtr_alloc.cli, dtr_alloc.config, dtr_alloc.report\n"
        "import sys\n"
        "print([name for name in ('torch', 'numpy', 'rich.table') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr
