"""The C header, the build and the compiled core agree. The last tests need the native build."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def build_core():
    spec = importlib.util.spec_from_file_location("build_core", ROOT / "native" / "build_core.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def functions(text):
    """Names of the functions declared in C text; types of callbacks are not functions."""
    plain = without_comments(text)
    statements = [part for part in re.split(r"[;{}]", plain) if "typedef" not in part]
    found = [re.search(r"\b(dtr_\w+)\s*\(", part) for part in statements]
    return {match[1] for match in found if match}


@pytest.fixture(scope="module")
def core():
    return pytest.importorskip(
        "dtr_alloc._core",
        reason="the core is not built here (pip install -e .)",
        exc_type=ImportError,
    )


def test_every_declaration_stands_between_the_marks():
    header = (ROOT / "native/include/dtr_alloc.h").read_text()
    assert functions(header) == functions(build_core().declarations(header))
    assert "dtr_abi_version" in functions(header)


def test_what_cffi_reads_has_no_preprocessor_lines():
    header = (ROOT / "native/include/dtr_alloc.h").read_text()
    assert not re.findall(r"^\s*#", build_core().declarations(header), re.MULTILINE)


def test_every_function_has_the_prefix():
    header = without_comments((ROOT / "native/include/dtr_alloc.h").read_text())
    declared = re.findall(r"^(?!typedef)\w[\w\s*]*?\b(\w+)\s*\([^;{}]*\)\s*;", header, re.MULTILINE)
    assert declared
    assert all(name.startswith("dtr_") for name in declared)


def test_the_core_has_the_functions_of_the_header_and_no_others(core):
    header = (ROOT / "native/include/dtr_alloc.h").read_text()
    built = {name for name in dir(core.lib) if callable(getattr(core.lib, name))}
    assert built == functions(header)


def test_the_core_has_the_version_that_the_package_expects(core):
    expected = pytest.importorskip(
        "dtr_alloc.core", reason="dtr_alloc.core is not here", exc_type=ImportError
    )
    assert core.lib.dtr_abi_version() >= 1
    assert expected.lib.dtr_abi_version() == core.lib.dtr_abi_version()


def test_no_error_is_pending_on_a_new_thread(core):
    import threading

    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(core.ffi.string(core.lib.dtr_last_error()))
    )
    thread.start()
    thread.join()
    assert seen == [b""]
