"""What the guides tell their readers to run does run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dtr_alloc

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave (?:it|this) as `(\w+\.py)`")


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("start/first-budget.md", 2),
        ("guides/out-of-memory.md", 3),
        ("guides/custom-operators.md", 1),
        ("guides/own-heuristic.md", 3),
    ],
)
def test_the_commands_of_a_guide(page: str, commands: int, tmp_path: Path) -> None:
    """Its first Python blocks are the files that it has its readers save."""
    text = (DOCS / page).read_text()
    blocks = BLOCK.findall(text)
    saved = SAVED.findall(text)
    assert saved
    for name, code in zip(saved, (code for kind, code in blocks if kind == "python"), strict=False):
        (tmp_path / name).write_text(code)
    console = "".join(code for kind, code in blocks if kind == "console")
    found = re.findall(r"^\$ (dtr-alloc|python) (.*)$", console, re.MULTILINE)
    assert len(found) == commands
    for program, line in found:
        module = ("-m", "dtr_alloc.cli") if program == "dtr-alloc" else ()
        subprocess.run(
            [sys.executable, *module, *line.split()],
            cwd=tmp_path,
            env={**os.environ, "DTR_ALLOC_DEVICE": "cpu"},
            check=True,
        )


def test_the_notebook() -> None:
    """Its cells, one after the other."""
    cells = json.loads((DOCS / "guides/notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {}
    try:
        for source in code:
            exec(source, namespace)  # a notebook's cells share their names
    finally:
        if dtr_alloc.is_enabled():
            dtr_alloc.disable()
    assert dtr_alloc.stats()["evictions"] > 0
    assert dtr_alloc.stats()["steps"] == 20
