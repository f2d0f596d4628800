"""What the guides tell their readers to run does run."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import dtr_alloc
from dtr_alloc.fragment import torch_export
from dtr_alloc.traces import trace_file

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HISTORY = ROOT / "tests/data/caching/plain-tight-2.13.0.trace"
"""What PyTorch's allocator recorded: a reader's snapshot.pickle."""
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
SAVED = re.compile(r"`(\w+\.py)`[^`]*^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A file that readers are told to save, and the block after its name."""

READINGS = [
    ("start/install.md",),
    ("start/first-budget.md",),
    (
        "guides/out-of-memory.md",
        "guides/larger-batch.md",
        "guides/choosing-a-budget.md",
        "guides/reading-the-page.md",
    ),
    *(("guides/checkpointing.md",), ("guides/frameworks.md", "start/stats.md")),
    *(("guides/fragmentation-study.md", "guides/allocator-models.md"), ("guides/simulate.md",)),
    *(("guides/custom-operators.md",), ("guides/own-heuristic.md",), ("guides/cuda.md",)),
]
"""Pages that are read one after the other, in one folder."""

NOT_RUN = {
    r"pip install|python3 -m venv": "it installs packages",
    r"make ": "it builds, or needs a GPU or CUDA builds of PyTorch; it checks itself",
    r"mpiexec": "it needs a cluster; tests/studies/test_executors.py has executors",
    **{
        rf"suggest {job}": f"there is no {framework}; make frameworks runs it"
        for job, framework in (("trainer", "transformers"), ("lightning", "lightning"))
        if find_spec(framework) is None
    },
}
"""Why a command that a pattern is found in is skipped."""

OF_THE_READER = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(512, 256)).square().mean().backward()
    optimizer.step()
"""
"""Where a guide has none, train.py is a reader's own."""


def commands(page: str) -> list[str]:
    blocks = CONSOLE.findall((DOCS / page).read_text())
    return [line for block in blocks for line in COMMAND.findall(block)]


def test_every_page_with_commands_is_read():
    pages = [path for part in ("start", "guides") for path in sorted((DOCS / part).glob("*.md"))]
    names = [str(path.relative_to(DOCS)) for path in pages]
    read = {page for reading in READINGS for page in reading}
    assert {name for name in names if commands(name)} == read


@pytest.mark.long
@pytest.mark.parametrize("reading", READINGS, ids=lambda pages: Path(pages[0]).stem)
def test_the_commands_of_guides(reading, tmp_path, subtests):
    """As a reader would, in a shell. A command that is skipped says why."""
    programs = {"dtr-alloc": "dtr_alloc.cli", "torchrun": "torch.distributed.run", "python": ""}
    (tmp_path / "bin").mkdir()
    for name, module in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module and f"-m {module}"} "$@"\n')
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "DTR_ALLOC_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    torch_export.write(trace_file.read(HISTORY), tmp_path / "snapshot.pickle")
    (tmp_path / "train.py").write_text(OF_THE_READER)
    for page in reading:
        for name, code in SAVED.findall((DOCS / page).read_text()):
            (tmp_path / name).write_text(code)
        for line in commands(page):
            with subtests.test(f"{page}: {line}"):
                for pattern, reason in NOT_RUN.items():
                    if re.search(pattern, line):
                        pytest.skip(f"{line}: {reason}")
                subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, check=True)


def test_the_notebook():
    """Its cells, one after the other. Those that end with a value show one that was kept."""
    cells = json.loads((DOCS / "guides/notebook.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [len(cell["outputs"]) for cell in code] == [0, 1, 1, 1, 0]
    namespace: dict[str, object] = {}
    try:
        for cell in code:
            exec("".join(cell["source"]), namespace)  # a notebook's cells share their names
    finally:
        if dtr_alloc.is_enabled():
            dtr_alloc.disable()
    assert dtr_alloc.stats()["evictions"] > 0
    assert dtr_alloc.stats()["steps"] == 20
