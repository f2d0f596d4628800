"""The C headers, the build and the compiled core agree. The last tests need the native build."""

import re

import pytest

from native import build_core


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


@pytest.fixture(scope="module")
def headers():
    return "".join(path.read_text() for path in build_core.headers())


def test_every_declaration_stands_between_the_marks(headers):
    assert functions(headers) == functions(build_core.declarations())
    assert "dtr_abi_version" in functions(headers)


def test_every_header_but_the_tables_is_read():
    found = {str(path.relative_to(build_core.HEADERS)) for path in build_core.headers()}
    there = {str(p.relative_to(build_core.HEADERS)) for p in build_core.HEADERS.rglob("*.h")}
    assert there - found == {"dtr/framework.h"}


@pytest.mark.parametrize("path", build_core.headers(), ids=lambda path: path.stem)
def test_a_header_is_short_and_whole(path):
    assert len(path.read_text().splitlines()) <= 350
    assert f"{path.relative_to(build_core.HEADERS)}:" in path.read_text().splitlines()[0]


def test_every_function_has_a_contract():
    """A comment stands right above it, or above the function before it."""
    text = build_core.declarations()
    is_said = False
    for part in re.split(r"(/\*.*?\*/|\n\n)", text, flags=re.DOTALL):
        if part.startswith("/*"):
            is_said = True
        elif part == "\n\n":
            is_said = False
        elif found := re.search(r"^\w[\w \*]*\b(dtr_\w+)\(", part, re.MULTILINE):
            assert is_said, f"{found[1]} has no comment"


def test_every_function_has_the_prefix(headers):
    text = without_comments(headers)
    declared = re.findall(r"^(?!typedef)\w[\w\s*]*?\b(\w+)\s*\([^;{}]*\)\s*;", text, re.MULTILINE)
    assert declared
    assert all(name.startswith("dtr_") for name in declared)


def test_the_core_has_the_functions_of_the_headers_and_no_others(core, headers):
    built = {name for name in dir(core.lib) if callable(getattr(core.lib, name))}
    assert built == functions(headers)


def test_the_laboratory_has_the_functions_of_its_header_and_none_is_the_cores(core):
    lab = pytest.importorskip(
        "dtr_alloc._lab",
        reason="the laboratory is not built here (pip install -e .)",
        exc_type=ImportError,
    )
    declared = functions(build_core.declared(build_core.LAB / "dtr_lab.h"))
    assert {name for name in dir(lab.lib) if callable(getattr(lab.lib, name))} == declared
    assert declared.isdisjoint(dir(core.lib))


def test_the_core_is_compiled_without_the_laboratory():
    assert not [source for source in build_core.sources() if source.startswith("native/lab/")]
    assert "native/lab/simrd.cpp" in build_core.lab_sources()


def test_no_error_is_pending_on_a_new_thread(core):
    import threading

    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(core.ffi.string(core.lib.dtr_last_error()))
    )
    thread.start()
    thread.join()
    assert seen == [b""]
