"""Checks the bridge for CUDA against one CUDA build of PyTorch, without a GPU.

Run by that PyTorch's python, as ``make cuda-bridge-check`` does:

    python check.py CORE FAKE_CUDA SELFTEST_SOURCE

The bridge is compiled and loaded as dtr_alloc does it, installed as PyTorch's CUDA allocator,
and asked through PyTorch's own entry points. Behind it is the compiled core with its CUDA driver
on a stand-in for libcuda. What needs CUDA's runtime (the current device and stream, kernels,
copies) is not reached: no kernel runs, and nothing is known of a real device from this.

Prints one line of a table; its exit status is 1 if something failed.
"""

import ctypes
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from dtr_alloc import compiler
from dtr_alloc.heuristics import PRESETS
from dtr_alloc.torch import bridge

MIB = 1 << 20
BUDGET = 64 * MIB
CUDA = 1
"""c10::DeviceType::CUDA."""


@cache
def structure(name: str) -> Any:
    """A struct of the C headers."""
    headers = (bridge._source_folder() / "include/dtr").glob("*.h")
    text = re.sub(r"/\*.*?\*/", "", "".join(path.read_text() for path in headers), flags=re.DOTALL)
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, re.DOTALL)
    assert body, name
    fields = []
    for kind, field in re.findall(r"^\s*(\w[\w *]*?)\b(\w+);", body[1], re.MULTILINE):
        kind = kind.strip()
        if kind == "dtr_heuristic":
            fields.append((field, structure(kind)))
        elif re.fullmatch(r"u?int\d+_t|double", kind):
            fields.append((field, getattr(ctypes, f"c_{kind.removesuffix('_t')}")))
        else:
            fields.append((field, ctypes.c_char_p if "char" in kind else ctypes.c_void_p))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def core_table(path: str, fake_cuda: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The core with one pool on the stand-in's device 0, and its engine."""
    core = ctypes.CDLL(path)
    core.dtr_last_error.restype = ctypes.c_char_p
    core.dtr_engine_core.restype = ctypes.c_void_p

    def check(status: int) -> None:
        assert status == 0, core.dtr_last_error().decode()

    check(core.dtr_cuda_set_library(fake_cuda.encode()))
    pool, engine = ctypes.c_void_p(), ctypes.c_void_p()
    options = structure("dtr_pool_options")(b"cuda", budget_bytes=BUDGET)
    check(core.dtr_pool_create(ctypes.byref(options), ctypes.byref(pool)))
    heuristic = structure("dtr_heuristic")(*PRESETS["dtr-eqclass"].numbers())
    wishes = structure("dtr_engine_options")(heuristic, history_ops=1000, dealloc=b"eager")
    check(core.dtr_engine_create(ctypes.byref(wishes), ctypes.byref(engine)))
    check(core.dtr_engine_add_pool(engine, CUDA, 0, pool))
    return core, engine


def selftest(source: str) -> ctypes.CDLL:
    """The caller on PyTorch's side: what kernels and operators do with an allocator."""
    cxx = compiler.find()
    assert cxx, "no C++ compiler"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "selftest.so"
        line = bridge.command(cxx, "cuda", [Path(source)], output)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        library = ctypes.CDLL(str(output))
    library.selftest.restype = ctypes.c_char_p
    return library


def ask_by_python() -> None:
    """The calls of torch.cuda.memory_* without the check that a device is there."""
    own = torch._C
    assert own._cuda_getAllocatorBackend() == "dtr_alloc"
    stats = own._cuda_memoryStats(0)
    assert stats["allocated_bytes"]["all"]["peak"] >= MIB, stats
    assert stats["allocated_bytes"]["all"]["current"] == 0, stats
    assert stats["num_ooms"] == 1, stats
    for name in ("allocated_bytes", "requested_bytes", "reserved_bytes", "allocation", "segment"):
        of = stats[name]["all"]
        assert of["allocated"] - of["freed"] == of["current"], (name, of)
    own._cuda_resetPeakMemoryStats(0)
    own._cuda_resetAccumulatedMemoryStats(0)
    stats = own._cuda_memoryStats(0)
    assert stats["allocated_bytes"]["all"] == dict.fromkeys(
        ("current", "peak", "allocated", "freed"), 0
    ), stats
    assert stats["num_ooms"] == 0, stats
    own._cuda_emptyCache()
    assert own._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"] == 0
    snapshot = own._cuda_memorySnapshot((0, 0))
    assert snapshot["segments"] == [], snapshot["segments"]
    assert own._cuda_getMemoryFraction(0) < 1
    with mock.patch("torch.cuda.memory.is_initialized", return_value=True):
        assert "Allocated memory" in torch.cuda.memory_summary(0)
        assert torch.cuda.max_memory_allocated(0) == 0
        assert torch.cuda.memory_stats(0)["allocation.all.peak"] == 0


def run(core_path: str, fake_cuda: str, source: str) -> str:
    started = time.monotonic()
    connected = bridge.Bridge("cuda")
    seconds = time.monotonic() - started
    assert not torch.cuda.is_initialized()
    core, engine = core_table(core_path, fake_cuda)
    table = connected.connect(core.dtr_engine_core(engine))
    assert core.dtr_engine_connect(engine, ctypes.c_void_p(table)) == 0
    connected.install_cuda(True)
    connected.install_cuda(True)  # the second time nothing is left to do
    wrong = selftest(source).selftest()
    assert wrong is None, wrong.decode()
    ask_by_python()
    assert not torch.cuda.is_initialized()
    return f"passed (bridge ready in {seconds:.1f} s)"


def main() -> int:
    try:
        result, status = run(*sys.argv[1:4]), 0
    except Exception:
        result, status = "FAILED\n" + traceback.format_exc(), 1
    facts = (torch.__version__, str(torch.version.cuda), platform.python_version())
    print("  {:<16}{:<8}{:<10}{}".format(*facts, result))
    return status


if __name__ == "__main__":
    sys.exit(main())
