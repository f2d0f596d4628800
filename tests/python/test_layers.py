"""The house stands as CONTRIBUTING.md says: includes and imports run downward only.

Reads the sources. Needs nothing, no compiler either; one test starts python.
"""

import ast
import functools
import os
import re
from pathlib import Path

import pytest
from commands import python

ROOT = Path(__file__).resolve().parent.parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH_HEADERS = re.compile(r"(torch|ATen|c10|caffe2)/")
CUDA_HEADERS = re.compile(r"cuda|cu(blas|dnn|fft|rand|solver|sparse)|nvrtc|nccl|driver_types")

NATIVE = (
    *("include", "base", "graph", "policy", "eviction", "oplog", "run"),
    *("simulate", "learn", "fragment", "api", "bridge", "lab"),
)
"""The folders of native/, the lowest layer first."""

PACKAGE = (
    *("", "oplog", "traces", "simulation", "fragment", "advise", "torch", "cli", "integrations"),
)
"""The folders of dtr_alloc/, the lowest layer first; "" holds its modules."""

ENTRIES = ("dtr_alloc", "dtr_alloc._autoload", "dtr_alloc.cupy")
"""Modules in dtr_alloc/ that users and PyTorch import: above all but cli."""


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
        if is_upward(path, name)
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


def test_only_the_bridge_and_its_tests_include_torch():
    everything = [path for folder in ("allocator", "native", "tests") for path in sources(folder)]
    of_tests = (ROOT / "tests" / name for name in ("torch", "cuda_bridge", "cuda_emulator"))
    may = {ROOT / "native" / "bridge", *of_tests}
    elsewhere = [path for path in everything if may.isdisjoint(path.parents)]
    assert not broken(elsewhere, TORCH_HEADERS.match)


def test_the_bridge_reaches_the_core_through_its_tables_only():
    of_core = (headers_of("allocator") | headers_of("native")) - headers_of("native/bridge")
    allowed = headers_of("native/include")
    assert not broken(
        sources("native/bridge"),
        lambda name: os.path.normpath(name).removeprefix("../") in of_core - allowed,
    )


@functools.cache
def modules():
    """Every module of dtr_alloc by its name."""
    found = {}
    for path in sorted((ROOT / "dtr_alloc").rglob("*.py")):
        if "native" not in path.relative_to(ROOT).parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path, at_the_top=False):
    """The modules that a module imports, also inside functions, for types only and by a string that
    names them; or only those that are imported with it."""

    def walk(body):
        for node in body:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports relatively"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif not at_the_top:
                yield from walk(ast.iter_child_nodes(node))
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from walk(node.orelse)
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(ast.iter_child_nodes(node))

    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [*walk(tree.body), *([] if at_the_top else names_in_strings(tree))]


def names_in_strings(tree):
    """The modules and their attributes that strings name, as ``dtr_alloc.cli.run:command``."""
    for node in ast.walk(tree):
        name = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and re.fullmatch(r"dtr_alloc(\.(?!native)\w+)+(:\w+)?", name):
            yield name.replace(":", ".")


def own_imports():
    """The modules of dtr_alloc that each imports, by name; the names in a package are the
    package's."""
    known = modules().keys()
    return {
        name: known & {full if full in known else full.rpartition(".")[0] for full in imports(path)}
        for name, path in modules().items()
    }


def layer(name):
    """The layer of a module: its folder's, or that of the entries."""
    if name == "dtr_alloc.__main__":
        return PACKAGE.index("cli")
    if name in ENTRIES:
        return PACKAGE.index("cli") - 0.5
    folder = name.removeprefix("dtr_alloc").removeprefix(".")
    if modules()[name].stem != "__init__":
        folder = folder.rpartition(".")[0]
    while folder not in PACKAGE:
        folder = folder.rpartition(".")[0]
    return PACKAGE.index(folder)


def test_the_folders_of_the_package_are_layers():
    upward = [
        f"{name} imports {other}"
        for name, others in own_imports().items()
        for other in others
        if layer(other) > layer(name)
    ]
    assert not upward


def test_a_name_of_a_module_is_not_put_together_where_it_is_imported():
    """Else the other tests here would not see it."""
    found = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and re.search(r"import_module$|__import__$", ast.unparse(node.func))
        and not isinstance(node.args[0], ast.Name | ast.Constant)
    ]
    assert not found


def test_no_modules_import_each_other_in_a_circle():
    left = own_imports()
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, "these import each other, or what does"


def test_the_package_imports_nothing_of_the_repository():
    found = {
        f"{name} imports {other}"
        for name, path in modules().items()
        for other in imports(path)
        if other.partition(".")[0] in ("bench", "tests")
    }
    assert not found


@pytest.mark.parametrize("name", modules())
def test_only_the_modules_that_need_torch_import_it(name):
    if layer(name) == PACKAGE.index("torch"):
        return
    found = [
        other
        for other in imports(modules()[name], at_the_top=True)
        if re.match(r"(dtr_alloc\.)?torch(\.|$)", other)
    ]
    assert not found, f"{name} imports {found} at its top"


def test_only_core_imports_the_extension():
    found = []
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            module = getattr(node, "module", None) or ""
            if "_core" in [name.rsplit(".")[-1] for name in (*names, module)]:
                found.append(path.stem)
    assert set(found) <= {"core"}


OF_A_JOB = {
    *("dtr_alloc", "dtr_alloc.bounded", "dtr_alloc.config", "dtr_alloc.heuristics"),
    *("dtr_alloc._autoload", "dtr_alloc.cli", "dtr_alloc.cli.common", "dtr_alloc.cli.run"),
}


@pytest.mark.parametrize(
    ("command", "own", "others"),
    [
        (["-c", "import dtr_alloc; show()"], {"dtr_alloc"}, set()),
        (["-m", "dtr_alloc", "run", "--budget", "1GiB", "SCRIPT"], OF_A_JOB, {"click"}),
    ],
    ids=["import dtr_alloc", "dtr-alloc run"],
)
def test_no_more_modules_are_loaded_than_it_takes(tmp_path, command, own, others):
    """Of a job that does not import torch."""
    show = "import sys; print(*sys.modules)"
    (tmp_path / "job.py").write_text(show)
    command = [part.replace("show()", show).replace("SCRIPT", "job.py") for part in command]
    shown = python(*command, cwd=tmp_path, PYTHONPATH=str(ROOT)).stdout.split()
    assert {name for name in shown if name.partition(".")[0] == "dtr_alloc"} == own
    heavy = {
        *("click", "rich", "msgspec", "cffi", "psutil", "torch", "numpy", "matplotlib"),
        "_cffi_backend",
    }
    assert heavy & set(shown) == others


@pytest.mark.parametrize(
    ("names", "others"),
    [
        ("dtr_alloc._autoload, dtr_alloc.cli, dtr_alloc.config, dtr_alloc.report", {"rich.table"}),
        ("dtr_alloc.oplog", {"cffi", "dtr_alloc.core", "dtr_alloc._core"}),
        ("dtr_alloc.cupy, dtr_alloc.pools", {"cupy"}),
    ],
)
def test_what_does_not_need_torch_does_not_import_it(names, others):
    result = python("-c", f"import sys, {names}; print(*sys.modules)", cwd=ROOT)
    assert not ({"torch", "numpy"} | others) & set(result.stdout.split())
    assert names.rpartition(" ")[2] in result.stdout.split(), result.stderr
