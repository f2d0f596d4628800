"""Compiles the CUDA whose kernels compute nothing (null_cuda.cpp), and says what to preload."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from dtr_alloc import compiler
from dtr_alloc.torch import bridge

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    ROOT / "bench/null_cuda/null_cuda.cpp",
    ROOT / "bench/null_cuda/cudnn.cpp",
    ROOT / "tests/cuda_emulator/runtime_common.cpp",
    ROOT / "tests/cuda_emulator/not_emulated.cpp",
)


def build(folder: Path) -> Path:
    """The library, for the CUDA build of PyTorch that runs this. Raises SystemExit without one."""
    if torch.version.cuda is None:
        raise SystemExit("bench.null_cuda: torch is built without CUDA here")
    cxx = compiler.find()
    if cxx is None:
        raise SystemExit("bench.null_cuda: there is no C++ compiler (g++) here")
    output = folder / "null_cuda.so"
    line = [cxx, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNULL_CUDA"]
    line += [f"-I{path}" for path in bridge._cuda_headers()]
    line += [*map(str, SOURCES), "-o", str(output), "-Wl,-soname,libcuda.so.1"]
    done = subprocess.run([*line, "-ldl", "-lpthread"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench.null_cuda: the library was not built:\n{done.stderr[-4000:]}")
    return output
