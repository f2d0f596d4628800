"""An unedited job trains under a budget, however it is switched on. Every job is a process of its
own, started as a user would start it."""

import json
import os

import pytest
import torch
from harness import command, python

import dtr_alloc
from dtr_alloc import oplog

BUDGET = "12MiB"
"""Below what the job needs without a budget (more than 20 MiB), above what it cannot do without."""

JOB = """
import hashlib, sys
import torch
from torch import nn

def main():
    torch.manual_seed(0)
    layers = [nn.Linear(32, 128)]
    for _ in range(12):
        layers += [nn.GELU(), nn.Linear(128, 128), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(128, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(1024, 32)
    y = torch.randint(0, 4, (1024,))
    for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()))
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    print(digest.hexdigest())

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the job prints without a budget."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "job.py").write_text(JOB)
    printed = python("job.py", cwd=folder).stdout
    assert len(printed.splitlines()) == 5
    return printed


def read_stats(path):
    return json.loads(path.read_text())


BY_COMMAND = ("-m", "dtr_alloc.cli", "run", "--budget", BUDGET, "--stats", "stats.json")
BY_ENVIRONMENT = {"budget": BUDGET, "stats": "stats.json"}
OWN_MAIN = "import job\njob.main()\n"
WAYS = {
    "by the environment": (["job.py"], BY_ENVIRONMENT),
    "by the command line": ([*BY_COMMAND, "job.py"], {}),
    "as a module": ([*BY_COMMAND, "--device", "cpu", "-m", "job", "4"], {}),
    "where torch calls no entry points": (
        [*BY_COMMAND, "job.py"],
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ),
    "from Python": (
        ["-c", f"import dtr_alloc, job\ndtr_alloc.enable(budget={BUDGET!r})\njob.main()"],
        {"stats": "stats.json"},
    ),
    "from Python with dtr_alloc imported first": (
        ["-c", f"import dtr_alloc\ndtr_alloc.enable(budget={BUDGET!r})\n{OWN_MAIN}"],
        {"stats": "stats.json"},
    ),
    "by the environment with dtr_alloc imported first": (
        ["-c", f"import dtr_alloc\nassert dtr_alloc.is_enabled()\n{OWN_MAIN}"],
        BY_ENVIRONMENT,
    ),
    "where freed memory is overwritten and given back at once": (
        ["job.py"],
        {**BY_ENVIRONMENT, "debug": "poison", "pool": "keep:0,chunk:64KiB"},
    ),
    "where nobody can touch what was freed": (["job.py"], {**BY_ENVIRONMENT, "debug": "guard"}),
    "on a fixed heap": (["job.py"], {**BY_ENVIRONMENT, "pool": "fixed"}),
}
QUICK = ("by the environment", "by the command line", "where torch calls no entry points")
QUICK += ("from Python", "on a fixed heap")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[] if way in QUICK else pytest.mark.long) for way in WAYS]
)
def test_the_job_prints_under_a_budget_what_it_prints_without(job, expected, way):
    arguments, settings = WAYS[way]
    assert python(*arguments, cwd=job, **settings).stdout == expected
    stats = read_stats(job / "stats.json")
    assert stats["budget_bytes"] == 12 * 2**20
    assert 0 < stats["peak_allocated_bytes"] <= stats["peak_reserved_bytes"] <= 12 * 2**20
    assert stats["evictions"] > 0
    assert stats["rematerializations"] > 0
    if arguments == ["job.py"]:
        assert stats["job"]["argv"][-1] == "job.py"
    if "chunk:64KiB" in settings.get("pool", ""):
        assert stats["chunk_bytes"] == 65536
    if settings.get("pool") == "fixed":
        assert stats["remaps"] == 0


def test_without_the_variable_nothing_is_imported(tmp_path):
    code = (
        "import sys, torch\n"
        "loaded = ('dtr_alloc.torch.api', 'dtr_alloc.config', 'dtr_alloc._core')\n"
        "print([name for name in loaded if name in sys.modules])"
    )
    assert python("-c", code, cwd=tmp_path, budget="").stdout == "[]\n"


def test_files_are_written_also_when_the_job_fails(job):
    (job / "failing.py").write_text(
        JOB.replace("    digest =", "    raise KeyError('lost')\n    digest =")
    )
    files = {"stats": "stats.json", "report": "report.txt", "costs": "costs.json", "log": "log.xz"}
    failed = python("failing.py", cwd=job, status=1, budget=BUDGET, **files)
    assert "KeyError: 'lost'" in failed.stderr
    assert read_stats(job / "stats.json")["evictions"] > 0
    assert "evictions" in (job / "report.txt").read_text()
    assert json.loads((job / "costs.json").read_text())["entries"]
    assert "aten.addmm.default" in oplog.compile_log(job / "log.xz").operator_names


def test_none_of_a_jobs_files_is_written_where_a_link_leads(job):
    (job / "elsewhere").mkdir()
    names = ("stats", "report", "costs", "log", "trace")
    for name in names:
        (job / name).symlink_to(f"elsewhere/{name}")
    settings = {name: name for name in names}
    assert python("job.py", "1", cwd=job, budget=BUDGET, **settings).stderr == ""
    assert os.listdir(job / "elsewhere") == []
    for name in names:
        assert not (job / name).is_symlink()
        assert (job / name).stat().st_size > 0


NO_PIPE = "allowed: a file, a device such as /dev/null, or a pipe that somebody reads (nobody reads"
MISSPELLED = "dtr_alloc: the name of a variable is '{}'; allowed: "
ENDS: list[tuple[dict[str, str], int, tuple[str, ...]]] = [
    ({"budget": "much"}, 2, ("DTR_ALLOC_BUDGET is 'much'; allowed: bytes", "60%")),
    *(
        ({"budget": "1GiB", name: "x"}, 2, (MISSPELLED.format(name), f"Did you mean {name[:-1]}?"))
        for name in ("DTR_ALLOC_HEURISTICS", "DTR_ALLOC_CACHES")
    ),
    ({"budget": "1GiB", "device": "cuda"}, 1, ("device 'cuda'",)),
    ({"budget": "1GiB", "costs": "damaged"}, 2, ("damaged", "Input data was truncated")),
    ({"log": "job.py/log"}, 1, ("DTR_ALLOC_LOG is 'job.py/log'",)),
    ({"trace": "job.py/t"}, 1, ("DTR_ALLOC_TRACE is 'job.py/t', but it cannot be had here",)),
    *(
        ({kind: "pipe", **budget}, 2, (f"DTR_ALLOC_{kind.upper()} is 'pipe'; {NO_PIPE}",))
        for kind in ("log", "trace")
        for budget in ({}, {"budget": "1GiB"})
    ),
]


@pytest.mark.parametrize(("settings", "status", "words"), ENDS)
def test_a_setting_that_cannot_be_had_ends_the_job_with_one_line(tmp_path, settings, status, words):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "damaged").write_text("{")
    (tmp_path / "job.py").write_text("import torch; print('trained')")
    result = python("job.py", cwd=tmp_path, status=status, **settings)
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert [each for each in words if each not in line] == []
    assert (tmp_path / "damaged").read_text() == "{"


def test_where_torch_is_not_imported_a_wrong_variable_ends_the_job_too(tmp_path):
    """It would run without a budget."""
    code = "import dtr_alloc; dtr_alloc.stats; print('trained')"
    result = python("-c", code, cwd=tmp_path, status=2, DTR_ALLOC_BUGDET="1GiB")
    assert result.stdout == ""
    assert result.stderr.endswith("Did you mean DTR_ALLOC_BUDGET?\n")


def test_a_cell_that_is_run_again_may_enable_again_and_says_so():
    dtr_alloc.enable("64MiB", device="cpu", exist_ok=True)
    try:
        y = torch.ones(2**16) * 2
        assert dtr_alloc.evict(y)
        with pytest.raises(dtr_alloc.ConfigError):
            dtr_alloc.enable("much", device="cpu", exist_ok=True)
        with pytest.raises(dtr_alloc.StateError, match="64"):
            dtr_alloc.enable("32MiB", device="cpu")
        assert dtr_alloc.stats()["budget_bytes"] == 64 * 2**20
        dtr_alloc.enable("32MiB", device="cpu", exist_ok=True)
        assert dtr_alloc.stats()["budget_bytes"] == 32 * 2**20
        assert y.sum().item() == 2**17
    finally:
        dtr_alloc.disable()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_work(tmp_path, start):
    (tmp_path / "loader.py").write_text(
        "import sys, torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "if __name__ == '__main__':\n"
        "    data = TensorDataset(torch.arange(64.0).reshape(32, 2))\n"
        "    loader = DataLoader(data, 8, num_workers=1, multiprocessing_context=sys.argv[1])\n"
        "    print(sum(batch.sum().item() for batch, in loader))\n"
    )
    done = command("run", "--budget", "64MiB", "loader.py", start, cwd=tmp_path)
    assert done.stdout == "2016.0\n"
