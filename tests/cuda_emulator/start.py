"""Runs a script on emulated CUDA: ``python start.py REPORT BUDGET SCRIPT ARGS...``

The stand-in for CUDA (cudart.cpp) must be preloaded. BUDGET is one of dtr_alloc.enable(), or
``none``: PyTorch's own allocator. REPORT gets what the stand-in saw, as JSON, also if the script
fails: ``violations`` (work that could run beside other work, memory used wrongly), ``refused``
(kernels that would have run, functions that are not emulated), ``stats`` of dtr_alloc, and the
script's global ``FACTS`` if it has one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernels
import torch


def _texts(function: Any) -> list[str]:
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_uint64]
    texts: list[str] = []
    while (text := function(len(texts))) is not None:
        texts.append(text.decode())
    return texts


def _report(facts: dict[str, Any], stats: Callable[[], Any]) -> dict[str, Any]:
    library = ctypes.CDLL("libcuda.so.1")
    return {
        "violations": _texts(library.fake_cuda_violation),
        "refused": _texts(library.cuda_emulator_refused),
        "stats": stats(),
        **facts,
    }


def main(report: str, budget: str, script: str) -> None:
    torch.set_num_threads(1)
    kernels.install()
    # Their kernels are no operators of the CPU.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    stats: Callable[[], Any] = dict
    if budget != "none":
        import dtr_alloc

        dtr_alloc.enable(budget=budget, device="cuda")
        stats = dtr_alloc.stats
    facts: dict[str, Any] = {}
    try:
        facts.update(runpy.run_path(script, {"FACTS": facts}, "__main__").get("FACTS", {}))
        if budget != "none":
            dtr_alloc.check_invariants()
    finally:
        with contextlib.suppress(Exception):
            facts.setdefault("peak_bytes", torch.cuda.max_memory_allocated())
        Path(report).write_text(json.dumps(_report(facts, stats)))


if __name__ == "__main__":
    report, budget, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    status = 0
    try:
        main(report, budget, script)
    except BaseException:
        traceback.print_exc()
        status = 1
    # Not the interpreter's own end: autograd's device threads, which run kernels in Python here,
    # may meet it while they wait for the GIL, and abort the process (also without dtr_alloc).
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
