"""The commands in this process, and python in one of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from click import Command
from click.testing import CliRunner, Result

from dtr_alloc.cli.fragment import command


def invoke(
    command: Command, *arguments: object, status: int | None = None, columns: int = 80
) -> Result:
    """Runs it, and checks its exit status where one is given."""
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(command, list(map(str, arguments)))
    assert status in (None, done.exit_code), done.output
    return done


def fragment(*arguments: object, status: int | None = 0, columns: int = 80) -> Result:
    """dtr-alloc fragment."""
    return invoke(command, *arguments, status=status, columns=columns)


def python(
    *arguments: object, environ: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs python with the DTR_ALLOC_* variables that are given, and no others."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DTR_ALLOC_")}
    options = {"capture_output": True, "text": True} | options
    given = list(map(str, arguments))
    return subprocess.run([sys.executable, *given], env=clean | (environ or {}), **options)


def python_with_pools(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script that may import native_pool."""
    here = Path(__file__).parent
    paths = {"PYTHONPATH": f"{here.parents[1]}:{here}"}
    return python("-X", "faulthandler", "-c", textwrap.dedent(script), environ=paths)
