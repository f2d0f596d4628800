"""A running job shows its last steps to its user, and to nobody else."""

import os
import resource
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from harness import is_true_in_a_fork, python

import dtr_alloc
from dtr_alloc import live
from dtr_alloc.cli import commands


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's jobs show themselves."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.0)
    return tmp_path / "dtr_alloc"


def stepper() -> Callable[[], object]:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    return optimizer.step


def top(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(commands, ["top", *arguments])
    return result.exit_code, result.output


def test_the_jobs_of_a_user_are_shown_while_they_run(folder):
    with dtr_alloc.session(budget="64MiB", device="cpu"):
        (values,) = live.running()
        assert values["steps"] == 0
        assert " - " in top("--once")[1]
        step = stepper()
        for _ in range(3):
            step()
        (values,) = live.running()
        assert (values["pid"], values["steps"]) == (os.getpid(), 3)
        assert values["budget_bytes"] == 64 << 20
        assert values["step_seconds"] > 0
        assert len(list(folder.iterdir())) == 1
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        status, text = top("--once", str(os.getpid()))
        assert (status, "64.00 MiB" in text) == (0, True)
    assert list(folder.iterdir()) == []
    status, text = top(str(os.getpid()))
    assert status == 2
    assert f"process {os.getpid()} shows nothing; allowed: a job of yours" in text


def test_a_job_that_does_not_end_its_session_leaves_nothing(folder):
    job = """
import torch, dtr_alloc
dtr_alloc.enable("64MiB", device="cpu")
(shown,) = dtr_alloc.live.running()
torch.ones(5)
raise SystemExit(3)
"""
    python("-c", "import dtr_alloc.live" + job, status=3)
    assert list(folder.iterdir()) == []


def test_what_a_job_left_that_was_killed_is_taken_away(folder):
    folder.mkdir(mode=0o700)
    for name in ("4194305.json", "job.json"):  # more than the kernel gives, and no number
        (folder / name).write_text("{}")
    assert list(live.running()) == []
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_can_write_to_is_not_used(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with dtr_alloc.session(budget="64MiB", device="cpu"):
        stepper()()
    assert list(folder.iterdir()) == []
    status, text = top("--once")
    assert status == 2
    assert "can be written to by others" in text


def test_a_job_goes_on_where_there_is_no_room_for_what_it_shows(folder, capsys):
    with dtr_alloc.session(budget="64MiB", device="cpu"):  # the bridge is there
        pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with dtr_alloc.session(budget="64MiB", device="cpu"):
            stepper()()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (text,) = capsys.readouterr().err.splitlines()
    assert text.startswith("dtr_alloc: `dtr-alloc top` will not show this job: ")
    assert str(folder) in text
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["argv", "stderr"])
def test_a_job_goes_on_that_changed_what_is_shown_of_it(folder, monkeypatch, name):
    with dtr_alloc.session(budget="64MiB", device="cpu", progress=True):
        step = stepper()
        monkeypatch.setattr(sys, name, None)
        step()


def test_a_session_keeps_no_file_open_for_what_it_shows(folder):
    with dtr_alloc.session(budget="64MiB", device="cpu"):
        stepper()()
        (path,) = folder.iterdir()
        assert 100 < path.stat().st_size < 4096
        assert str(folder) not in Path("/proc/self/maps").read_text()
        opened = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
        assert str(path) not in opened


SHOWN = """{"pid": %d, "rank": null, "job": ["\\u001b[2J.py"], "steps": 0, "step_seconds": 0,
 "budget_bytes": 18446744073709551615, "allocated_bytes": 0, "peak_allocated_bytes": 0,
 "recompute_share": 0.0, "evictions": 0, "is_planned": false}"""
ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff" * 5000),
    "other keys": lambda path: path.write_text('{"pid": 1, "steps": 3}'),
    "other types": lambda path: path.write_text(SHOWN.replace("null", "5") % os.getppid()),
    "a nest": lambda path: path.write_text("[" * 4096),
    "another's number": lambda path: path.write_text(SHOWN % 1234567),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_job_s_is_passed_over(folder, kind):
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.json").write_text(SHOWN % os.getpid())
    ODD[kind](folder / f"{os.getppid()}.json")
    (folder / "no number.json").mkdir()
    assert [values["pid"] for values in live.running()] == [os.getpid()]
    status, text = top("--once")
    assert (status, "\x1b" in text) == (0, False)


def test_progress_is_a_line_on_stderr(folder, capsys):
    with dtr_alloc.session(budget="64MiB", device="cpu", progress=True):
        step = stepper()
        step()
        step()  # a minute is not over
    (text,) = capsys.readouterr().err.splitlines()
    assert text.startswith("dtr_alloc: step 1, ")
    assert "of 64.00 MiB at the peak, 0% of the compute again" in text


def test_a_forked_child_leaves_what_its_parent_shows(folder):
    with dtr_alloc.session(budget="64MiB", device="cpu"):
        stepper()()
        assert is_true_in_a_fork(lambda: len(list(folder.iterdir())) == 1)
        assert len(list(folder.iterdir())) == 1
