"""How the core is compiled (native/build_core.py)."""

from pathlib import Path

import pytest
from commands import python

pytest.importorskip("cffi", reason="cffi is not installed here")

ROOT = Path(__file__).parents[2]
PRINT = "from native import build_core; print(*build_core.compile_args(), *build_core.link_args())"


def flags(compiler: Path) -> tuple[list[str], str]:
    """Of the compiler and the linker, and what was said on standard error."""
    done = python("-c", PRINT, CXX=str(compiler), cwd=ROOT)
    return done.stdout.split(), done.stderr


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_compiler_that_cannot_optimize_while_linking_is_not_asked_to(tmp_path: Path) -> None:
    cannot = script(tmp_path / "cannot", 'echo "could not run lto-wrapper" >&2; exit 1')
    found, said = flags(cannot)
    assert "-O3" in found
    assert not [flag for flag in found if flag.startswith("-flto")]
    assert str(cannot) in said
    assert "could not run lto-wrapper" in said


def test_one_that_can_is(tmp_path: Path) -> None:
    found, said = flags(script(tmp_path / "can", "exit 0"))
    assert found.count("-flto=auto") == 2
    assert said == ""
