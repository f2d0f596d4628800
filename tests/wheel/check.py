"""Checks a wheel in an environment without a compiler: its bridges are what this python's PyTorch
needs, and a job of the demo trains under a budget with the same bits.

``make wheel`` runs it in a folder that has ``bench``, with a DTR_ALLOC_CACHE that is not there. It
prints one line.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from dtr_alloc import compiler
from dtr_alloc.torch import bridge


def train(budget: str | int) -> dict[str, Any]:
    """What six steps of the demo's character model left behind, on the CPU."""
    options = ["--job", "gpt", "--budget", str(budget), "--scale", "0.25"]
    command = [sys.executable, "-W", "ignore", "-m", "bench.demo.worker", *options]
    told = "".join(f'{{"command": "{each}"}}\n' for each in (*["step"] * 6, "end"))
    return json.loads(subprocess.check_output(command, input=told, text=True).splitlines()[-1])


def main() -> None:
    assert compiler.find() is None, compiler.find()
    paths = [bridge.Bridge(device).path for device in bridge.kinds()]
    assert all(path.parent == bridge.PACKAGED for path in paths), paths
    plain, free = train("plain"), train("unlimited")
    idle = free["idle_bytes"]
    bounded = train(idle + (free["peak_allocated_bytes"] - idle) // 2)
    assert bounded["fits"], bounded
    assert bounded["evictions"] > 0, bounded
    assert bounded["digest"] == free["digest"] == plain["digest"]
    assert not Path(os.environ["DTR_ALLOC_CACHE"]).exists(), "something was compiled"
    facts = f"torch {torch.__version__} python {platform.python_version()}"
    print(f"{facts}: {', '.join(bridge.kinds())}; trained with {bounded['evictions']} evictions")


if __name__ == "__main__":
    main()
