"""The commands in this process, and python in one of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from click import Command
from click.testing import CliRunner, Result

from dtr_alloc.cli.fragment import command as fragment_command


def invoke(
    command: Command, *arguments: object, status: int | None = None, columns: int = 80
) -> Result:
    """Runs it, and checks its exit status where one is given."""
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(command, list(map(str, arguments)))
    assert status in (None, done.exit_code), done.output
    return done


def fragment(*arguments: object, status: int | None = 0, columns: int = 80) -> Result:
    """dtr-alloc fragment."""
    return invoke(fragment_command, *arguments, status=status, columns=columns)


def environment(**settings: str) -> dict[str, str]:
    """This process's variables, for CPU tensors and one thread, with these settings of dtr_alloc
    and no others: `budget` is DTR_ALLOC_BUDGET. A name in capitals is the variable's own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("DTR_ALLOC_BUILD", "DTR_ALLOC_CACHE") or not name.startswith("DTR_ALLOC_")
    }
    given = {n if n.isupper() else f"DTR_ALLOC_{n.upper()}": v for n, v in settings.items()}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **given}


def python(
    *arguments: object,
    cwd: Path | None = None,
    status: int | None = 0,
    timeout: float | None = None,
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Runs python in a process of its own, which must end with the status (None: with any)."""
    line = [sys.executable, *map(str, arguments)]
    options: dict[str, Any] = {"cwd": cwd, "timeout": timeout, "env": environment(**settings)}
    done = subprocess.run(line, capture_output=True, text=True, check=False, **options)
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """As python(), of ``dtr-alloc``."""
    return python("-m", "dtr_alloc.cli", *arguments, **options)


def python_with_pools(script: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a script that may import native_pool."""
    here = Path(__file__).parent
    line = ("-X", "faulthandler", "-c", textwrap.dedent(script))
    return python(*line, status=status, PYTHONPATH=f"{here.parents[1]}:{here}")
