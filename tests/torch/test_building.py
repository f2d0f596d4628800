"""The bridge is compiled once, says so, and can be compiled before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def build(cache: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dtr_alloc.cli", "build", *arguments],
        env={**os.environ, "DTR_ALLOC_CACHE": str(cache), **environ},
        capture_output=True,
        text=True,
    )


def test_the_first_call_compiles_and_says_so_and_the_second_finds_it(tmp_path: Path) -> None:
    first = build(tmp_path, "--device", "cpu")
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip()).parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == [Path(first.stdout.strip()).name]
    assert "compiling the bridge to PyTorch for cpu" in first.stderr
    second = build(tmp_path, "--device", "cpu")
    assert second.stdout == first.stdout
    assert "compiling" not in second.stderr


def test_a_device_that_torch_is_not_built_for_is_named(tmp_path: Path) -> None:
    refused = build(tmp_path, "--device", "tpu")
    assert refused.returncode == 2
    assert "'tpu': the installed torch is built for cpu" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_it_says_how_to_get_one(tmp_path: Path) -> None:
    refused = build(tmp_path, DTR_ALLOC_CXX="no-such-compiler")
    assert refused.returncode == 1
    assert "no C++ compiler: looked for 'no-such-compiler'" in refused.stderr
    assert not list(tmp_path.iterdir())
