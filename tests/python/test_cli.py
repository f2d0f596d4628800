"""The command line reads its options, runs a program as python would, and says what is wrong.

Needs nothing: the programs that run here do not import torch (tests/torch/test_jobs.py has those
that do), and each runs in a process of its own.
"""

import ast
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import command, python

from dtr_alloc import cli, config, report
from dtr_alloc.config import known_variables
from dtr_alloc.torch_versions import TRIED

pytest.importorskip("click", reason="the command line is written with click")


@pytest.fixture
def script(tmp_path):
    """Writes a script into its own folder and returns its path."""

    def write(text, name="job.py"):
        folder = tmp_path / "jobs"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(text)
        return str(path)

    return write


SHOW = "import json, sys; print(json.dumps([__name__, sys.argv, sys.path[0]]))"


@pytest.mark.parametrize(
    ("moved", "there"),
    [
        ("reproduce", "python -m bench.studies`, in the root of a checkout"),
        ("schedule", "python -m bench.studies.best find`, in the root of a checkout"),
        ("fragment record", "dtr-alloc run --trace OUT`"),
        ("fragment run", "dtr-alloc fragment report`"),
    ],
)
def test_a_command_that_has_moved_says_where_to_in_one_line(moved, there):
    *group, name = moved.split()
    done = CliRunner().invoke(cli.commands, [*group, name, "sweep", "--smoke", "--out", "x"])
    assert done.exit_code == 2
    assert done.output == f"Error: dtr-alloc {moved} is now `{there}\n"
    assert f" {name} " not in CliRunner().invoke(cli.commands, [*group, "--help"]).output


def test_python_runs_the_package_as_the_command():
    assert python("-m", "dtr_alloc", "--help").stdout == command("--help").stdout


@pytest.mark.parametrize("group", [(), ("fragment",)])
def test_a_mistyped_command_is_told_the_nearest(group):
    result = command(*group, "reprot", status=2)
    assert "Did you mean" in result.stderr
    assert "'report'" in result.stderr


def test_an_interrupt_ends_a_command_as_it_ends_python(monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "given_settings", interrupt)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--budget", "1GiB", "job.py"])
    assert ended.value.code == 128 + signal.SIGINT


def test_a_python_without_pytorch_is_what_a_job_without_it_is_told(script):
    code = f"""
import sys
from dtr_alloc import _autoload, cli
_autoload.find_spec = lambda name: None
cli.main(["run", "--budget", "1GiB", {script("import json")!r}])
"""
    result = python("-c", code)
    assert result.stderr.startswith("dtr_alloc: PyTorch is not installed for ")
    assert "import torch" not in result.stderr


GIB = ("--budget", "1GiB")


@pytest.mark.parametrize(
    ("options", "environ", "messages"),
    [
        ((), {}, ["no budget: give --budget 8GiB", "DTR_ALLOC_BUDGET"]),
        (("--budget", "much"), {}, ["--budget is 'much'; allowed: bytes"]),
        ((*GIB, "--device", "tpu"), {}, ["--device is 'tpu'; allowed: auto, cuda, cpu"]),
        (("--budget", ""), {"DTR_ALLOC_BUDGET": "1GiB"}, ["--budget is empty"]),
        (("--log", "x.log", "--log-steps", "0"), {}, ["--log-steps is '0'"]),
        ((), {"DTR_ALLOC_BUDGET": "much"}, ["DTR_ALLOC_BUDGET is 'much'"]),
        (GIB, {"DTR_ALLOC_BUGDET": "1"}, ["DTR_ALLOC_BUGDET", known_variables()[0]]),
    ],
)
def test_what_run_cannot_use_is_named_before_the_job_starts(script, options, environ, messages):
    result = command("run", *options, script(SHOW), status=2, **environ)
    assert result.stdout == ""
    assert all(message in result.stderr for message in messages)


def test_a_missing_script_is_an_error():
    result = command("run", "--budget", "1GiB", "nowhere.py", status=2)
    assert "there is no script 'nowhere.py'" in result.stderr


@pytest.fixture(scope="module")
def installed():
    """A job that does not import torch needs the entry point, or the core would be started."""
    found = command("info", "--json")
    if not json.loads(found.stdout)["entry_point"]["registered"]:
        pytest.skip("dtr_alloc is not installed here (pip install -e .)")


@pytest.mark.usefixtures("installed")
class TestJobsThatNeverImportTorch:
    def test_a_script_sees_what_python_shows_it(self, script):
        path = script(SHOW)
        arguments = ["--budget", "x", "-m", "--", "a b"]
        result = command("run", "--budget", "1GiB", path, *arguments)
        plain = python(path, *arguments)
        assert result.stdout == plain.stdout
        assert "never imported torch" in result.stderr

    def test_a_module_sees_what_python_shows_it(self, script, tmp_path):
        script(SHOW, "job.py")
        folder = tmp_path / "jobs"
        arguments = ["-m", "job", "--budget", "x"]
        result = command("run", "--budget", "1GiB", *arguments, cwd=folder)
        assert result.stdout == python(*arguments, cwd=folder).stdout

    def test_a_folder_with_a_main_runs(self, script, tmp_path):
        script("print(__name__)", "__main__.py")
        result = command("run", "--budget", "1GiB", str(tmp_path / "jobs"))
        assert result.stdout == "__main__\n"

    def test_processes_of_the_job_inherit_its_settings(self, script):
        show = (
            "import os; print({n[10:]: v for n, v in os.environ.items() if n[:10] == 'DTR_ALLOC_'})"
        )
        given = {"budget": "1GiB", "swap": "2GiB", "thrash": "off", "trust": "mine", "ranks": "off"}
        given |= {"device": "cpu"}
        options = [word for name, value in given.items() for word in (f"--{name}", value)]
        result = command("run", *options, "--progress", "--report", script(show))
        given |= {"progress": "True", "report": "1"}
        inherited = {name.upper(): value for name, value in given.items()}
        assert ast.literal_eval(result.stdout) == inherited

    @pytest.mark.parametrize(("code", "status"), [("7", 7), ("", 0), ("'text'", 1)])
    def test_exit_codes_pass_through(self, script, code, status):
        job = script(f"import sys; sys.exit({code})")
        command("run", "--budget", "1GiB", job, status=status)

    def test_a_traceback_begins_in_the_job(self, script):
        path = script("def f():\n    raise KeyError('lost')\nf()\n")
        result = command("run", "--budget", "1GiB", path, status=1)
        assert "KeyError: 'lost'" in result.stderr
        files = [line for line in result.stderr.splitlines() if line.startswith("  File ")]
        assert len(files) == 2, result.stderr
        assert all(path in line for line in files)

    def test_a_budget_from_the_file_reaches_the_entry_point(self, script, tmp_path):
        path = tmp_path / "dtr.toml"
        path.write_text("budget = 1073741824\n")
        text = "import os; print(os.environ['DTR_ALLOC_BUDGET'])"
        result = command("run", script(text), config=str(path))
        assert result.stdout == "1073741824\n", result.stderr


def test_info_says_what_is_active_and_why_not():
    result = command("info", "--json")
    found = json.loads(result.stdout)
    assert set(found) >= {"core", "torch", "bridge", "cuda", "entry_point", "variables"}
    assert found["physical_memory_bytes"] > 0
    assert found["torch"]["tried"] == TRIED
    for subject, works in [("core", "built"), ("cuda", "usable"), ("entry_point", "enables")]:
        assert found[subject][works] or found[subject]["reason"], subject


def test_info_names_a_wrong_variable_and_enables_nothing():
    result = command("info", "--json", budget="much")
    variables = json.loads(result.stdout)["variables"]
    assert variables["set"] == {"DTR_ALLOC_BUDGET": "much"}
    assert not variables["valid"]
    assert "DTR_ALLOC_BUDGET is 'much'" in variables["reason"]


def test_info_prints_a_table():
    result = command("info")
    assert "physical_memory" in result.stdout


@pytest.fixture
def stats_of_ranks(tmp_path, monkeypatch):
    """Two ranks with budgets of 100 bytes: rank 10 evicts, and rank 9 does not."""
    paths = []
    for rank, evictions in ((10, 3), (9, 0)):
        monkeypatch.setenv("RANK", str(rank))
        stats = {
            "budget_bytes": 100,
            "peak_allocated_bytes": 90,
            "recompute_seconds": 0.5 * evictions,
            "recompute_cost_ns": 2 * evictions,
            "clock_seconds": 60e-9,
            "search_seconds": 0.25,
            "evictions": evictions,
            "out_of_memory_errors": 0,
            "recorded_ops": 4,
            "unrecorded_ops": 12,
        }
        paths.append(str(report.write_stats(tmp_path / "stats-{rank}.json", stats)))
    return paths


def test_the_report_of_two_ranks(stats_of_ranks):
    result = command("report", *stats_of_ranks)
    assert result.stdout.index(" 9 ") < result.stdout.index(" 10 ")
    assert "Rank 10 is nearest its budget: its peak was 90.0 % of it." in result.stdout
    assert "Rank 10 recomputes most, 1.500 s; the others wait" in result.stdout
    result = command("report", "--json", "-", *stats_of_ranks)
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["rank"], second["rank"]) == ("9", "10")
    assert (second["budget_share"], second["recompute_share"]) == (0.9, 0.1)
    assert second["rest_share"] == 0.75


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        *(("budget", "it is not JSON"), ("[]", "it holds []; allowed: an object")),
        ('{"budget_bytes": NaN}', "it has budget_bytes nan; allowed: a file that --stats"),
        ('{"budget_bytes": 0}', "it has no peak_allocated_bytes"),
        *(('{"job": {"rank": 1}}', "it has rank 1"), (None, "it is of rank 9, and so is")),
    ],
)
def test_the_report_names_a_wrong_file_and_what_is_wrong(stats_of_ranks, tmp_path, text, fault):
    path = tmp_path / "wrong.json"
    path.write_text(text or Path(stats_of_ranks[1]).read_text())
    result = command("report", *stats_of_ranks, path, status=2)
    assert result.stdout == ""
    assert f"Error: {path}: {fault}" in result.stderr
