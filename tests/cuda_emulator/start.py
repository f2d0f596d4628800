"""Runs a script on emulated CUDA: ``python start.py REPORT BUDGET SCRIPT ARGS...``

The stand-in for CUDA (cudart.cpp) must be preloaded. BUDGET is one of dtr_alloc.enable(), or
``none``: PyTorch's own allocator. REPORT gets what the stand-in saw, as JSON, also if the script
fails: ``violations`` (work that could run beside other work, memory used wrongly), ``refused``
(kernels that would have run, functions that are not emulated), ``stats`` of dtr_alloc, and the
script's global ``FACTS`` if it has one.
"""

import contextlib
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import torch


def main(report: str, budget: str, script: str) -> None:
    emulated.prepare()
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
        found = {**emulated.seen(), "stats": stats(), **facts}
        Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    report, budget, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    status = 0
    try:
        main(report, budget, script)
    except BaseException:
        traceback.print_exc()
        status = 1
    emulated.leave(status)
