"""An unedited job trains under a budget, however it is switched on. Needs torch and the core.

Every job is a process of its own, started as a user would start it.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
pytest.importorskip(
    "dtr_alloc._core", reason="the core is not built here (pip install -e .)", exc_type=ImportError
)

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


def python(*arguments, cwd, **environ):
    """Runs python with only the DTR_ALLOC_* variables given; CPU tensors, one thread."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DTR_ALLOC_")}
    keep = {key: os.environ[key] for key in ("DTR_ALLOC_CACHE", "CXX") if key in os.environ}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**clean, **keep, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environ},
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def run_command(*arguments, cwd, **environ):
    return python("-m", "dtr_alloc.cli", *arguments, cwd=cwd, **environ)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the job prints without a budget."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "job.py").write_text(JOB)
    result = python("job.py", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 5
    return result.stdout


def read_stats(path):
    return json.loads(path.read_text())


class TestTheSameBits:
    """However the budget is given, the job prints what it prints without one."""

    def check(self, result, expected, folder):
        assert result.returncode == 0, result.stderr
        assert result.stdout == expected
        stats = read_stats(folder / "stats.json")
        assert stats["budget_bytes"] == 12 * 2**20
        assert 0 < stats["peak_allocated_bytes"] <= stats["budget_bytes"]
        assert stats["evictions"] > 0
        assert stats["rematerializations"] > 0

    def test_by_the_environment(self, job, expected):
        result = python("job.py", cwd=job, DTR_ALLOC_BUDGET=BUDGET, DTR_ALLOC_STATS="stats.json")
        self.check(result, expected, job)
        assert read_stats(job / "stats.json")["job"]["argv"][-1] == "job.py"

    @pytest.mark.long
    def test_where_freed_memory_is_overwritten_and_given_back_at_once(self, job, expected):
        settings = {"DTR_ALLOC_DEBUG": "poison", "DTR_ALLOC_POOL": "keep:0,chunk:64KiB"}
        result = python(
            "job.py", cwd=job, DTR_ALLOC_BUDGET=BUDGET, DTR_ALLOC_STATS="stats.json", **settings
        )
        self.check(result, expected, job)
        assert read_stats(job / "stats.json")["chunk_bytes"] == 65536

    @pytest.mark.long
    def test_where_nobody_can_touch_what_was_freed(self, job, expected):
        settings = {"DTR_ALLOC_DEBUG": "guard", "DTR_ALLOC_STATS": "stats.json"}
        result = python("job.py", cwd=job, DTR_ALLOC_BUDGET=BUDGET, **settings)
        self.check(result, expected, job)

    def test_by_the_command_line(self, job, expected):
        result = run_command("run", "--budget", BUDGET, "--stats", "stats.json", "job.py", cwd=job)
        self.check(result, expected, job)

    @pytest.mark.long
    def test_as_a_module(self, job, expected):
        options = ["--budget", BUDGET, "--device", "cpu", "--stats", "stats.json"]
        result = run_command("run", *options, "-m", "job", "4", cwd=job)
        self.check(result, expected, job)

    def test_where_torch_calls_no_entry_points(self, job, expected):
        options = ["--budget", BUDGET, "--stats", "stats.json"]
        result = run_command("run", *options, "job.py", cwd=job, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.check(result, expected, job)

    def test_from_python(self, job, expected):
        (job / "start.py").write_text(
            f"import dtr_alloc, job\ndtr_alloc.enable(budget={BUDGET!r})\njob.main()\n"
        )
        result = python("start.py", cwd=job)
        assert (result.returncode, result.stdout) == (0, expected), result.stderr

    @pytest.mark.long
    def test_from_python_with_dtr_alloc_imported_first(self, job, expected):
        (job / "start.py").write_text(
            f"import dtr_alloc\ndtr_alloc.enable(budget={BUDGET!r})\nimport job\njob.main()\n"
        )
        result = python("start.py", cwd=job)
        assert (result.returncode, result.stdout) == (0, expected), result.stderr

    @pytest.mark.long
    def test_by_the_environment_with_dtr_alloc_imported_first(self, job, expected):
        (job / "start.py").write_text(
            "import dtr_alloc\nassert dtr_alloc.is_enabled()\nimport job\njob.main()\n"
        )
        result = python("start.py", cwd=job, DTR_ALLOC_BUDGET=BUDGET, DTR_ALLOC_STATS="stats.json")
        self.check(result, expected, job)

    def test_unlimited_measures_and_evicts_nothing(self, job, expected):
        result = run_command(
            "run", "--budget", "unlimited", "--stats", "stats.json", "job.py", cwd=job
        )
        assert (result.returncode, result.stdout) == (0, expected), result.stderr
        stats = read_stats(job / "stats.json")
        assert stats["evictions"] == 0
        assert stats["peak_allocated_bytes"] > 12 * 2**20, "the budget of these tests binds nothing"


def test_without_the_variable_nothing_is_imported(tmp_path):
    code = (
        "import sys, torch\n"
        "loaded = ('dtr_alloc.torch.api', 'dtr_alloc.config', 'dtr_alloc._core')\n"
        "print([name for name in loaded if name in sys.modules])"
    )
    result = python("-c", code, cwd=tmp_path, DTR_ALLOC_BUDGET="")
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


def test_stats_and_report_are_written_also_when_the_job_fails(job):
    (job / "failing.py").write_text(
        JOB.replace("    digest =", "    raise KeyError('lost')\n    digest =")
    )
    result = python(
        "failing.py",
        cwd=job,
        DTR_ALLOC_BUDGET=BUDGET,
        DTR_ALLOC_STATS="stats.json",
        DTR_ALLOC_REPORT="report.txt",
    )
    assert result.returncode == 1
    assert "KeyError: 'lost'" in result.stderr
    assert read_stats(job / "stats.json")["evictions"] > 0
    assert "evictions" in (job / "report.txt").read_text()


def test_none_of_a_jobs_files_is_written_where_a_link_leads(job):
    (job / "elsewhere").mkdir()
    names = ("stats", "report", "costs", "log", "trace")
    for name in names:
        (job / name).symlink_to(f"elsewhere/{name}")
    settings = {f"DTR_ALLOC_{name.upper()}": name for name in names}
    result = python("job.py", "1", cwd=job, DTR_ALLOC_BUDGET=BUDGET, **settings)
    assert (result.returncode, result.stderr) == (0, "")
    assert os.listdir(job / "elsewhere") == []
    for name in names:
        assert not (job / name).is_symlink()
        assert (job / name).stat().st_size > 0


@pytest.mark.parametrize("importing", ["import torch", "import dtr_alloc; dtr_alloc.stats"])
def test_a_wrong_budget_ends_the_job_with_one_clear_line(tmp_path, importing):
    result = python("-c", f"{importing}; print('trained')", cwd=tmp_path, DTR_ALLOC_BUDGET="much")
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert "DTR_ALLOC_BUDGET is 'much'; allowed: bytes" in line
    assert "60%" in line


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"DTR_ALLOC_BUGDET": "1GiB"}, "DTR_ALLOC_BUDGET"),  # it would run without a budget
        ({"DTR_ALLOC_BUDGET": "1GiB", "DTR_ALLOC_HEURISTICS": "lru"}, "DTR_ALLOC_HEURISTIC"),
        ({"DTR_ALLOC_CACHES": "x"}, "DTR_ALLOC_CACHE"),
    ],
)
def test_a_misspelled_variable_ends_the_job(tmp_path, settings, meant):
    result = python("-c", "import torch; print('trained')", cwd=tmp_path, **settings)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"dtr_alloc: the name of a variable is '{[*settings][-1]}'; allowed: ")
    assert line.endswith(f"Did you mean {meant}?")


def test_a_budget_that_cannot_be_enforced_ends_the_job(tmp_path):
    """Without a compiler there is no bridge, and no silent training without a budget."""
    result = python(
        "-c",
        "import torch; print('trained')",
        cwd=tmp_path,
        DTR_ALLOC_BUDGET="1GiB",
        CXX="no-such-compiler",
        DTR_ALLOC_CACHE=str(tmp_path / "cache"),
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "DTR_ALLOC_BUDGET is '1GiB', but the budget cannot be enforced" in result.stderr
    assert "no-such-compiler" in result.stderr


def test_enabling_twice_is_an_error_that_names_the_running_budget(tmp_path):
    code = (
        "import dtr_alloc\n"
        "dtr_alloc.enable(budget='64MiB')\n"
        "try:\n"
        "    dtr_alloc.enable(budget='32MiB')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "print(dtr_alloc.stats()['budget_bytes'])\n"
    )
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    message, budget = result.stdout.strip().rsplit("\n", 1)
    assert str(64 * 2**20) in message or "64" in message
    assert int(budget) == 64 * 2**20


def test_a_cell_that_is_run_again_may_enable_again(tmp_path):
    code = (
        "import torch, dtr_alloc\n"
        "dtr_alloc.enable(budget='64MiB', exist_ok=True)\n"
        "y = torch.ones(2**16) * 2\n"
        "dtr_alloc.evict(y)\n"
        "try:\n"
        "    dtr_alloc.enable(budget='much', exist_ok=True)\n"
        "except dtr_alloc.ConfigError:\n"
        "    print(dtr_alloc.stats()['budget_bytes'])\n"
        "dtr_alloc.enable(budget='32MiB', exist_ok=True)\n"
        "print(dtr_alloc.stats()['budget_bytes'], y.sum().item())\n"
    )
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(64 * 2**20), str(32 * 2**20), str(2.0**17)]


def test_enabling_a_job_that_the_environment_enabled_is_the_same_error(tmp_path):
    code = "import torch, dtr_alloc\ndtr_alloc.enable(budget='32MiB')\n"
    result = python("-c", code, cwd=tmp_path, DTR_ALLOC_BUDGET="64MiB")
    assert result.returncode == 1
    assert "64" in result.stderr.splitlines()[-1]


def test_a_forked_child_starts_with_the_recorder_off(tmp_path):
    code = (
        "import os, torch, dtr_alloc\n"
        "x = torch.ones(1000)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    good = not dtr_alloc.is_enabled() and (x + torch.ones(1000)).sum().item() == 2000\n"
        "    os._exit(0 if good else 7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), dtr_alloc.is_enabled())\n"
    )
    result = python("-c", code, cwd=tmp_path, DTR_ALLOC_BUDGET="64MiB")
    assert (result.returncode, result.stdout) == (0, "0 True\n"), result.stderr


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
    result = run_command("run", "--budget", "64MiB", "loader.py", start, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "2016.0\n"), result.stderr
