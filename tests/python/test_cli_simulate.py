"""``dtr-alloc simulate``: what it prints, writes and refuses. Needs the native build."""

import json
import lzma
from pathlib import Path

import pytest

pytest.importorskip("dtr_alloc._core", reason="the core is not built here", exc_type=ImportError)

from commands import command, invoke

from dtr_alloc.cli import commands
from dtr_alloc.oplog import Alias, Call, Constant, Memory, Release, Writer

DATA = Path(__file__).parents[1] / "data/simrd/synthetic_logs"
FUZZ_A = str(DATA / "fuzz_a.log.xz")
UNET = str(DATA / "unet_skip.log.xz")


def simulate(*arguments):
    """In this process, which is faster."""
    done = invoke(commands, "simulate", *arguments, "--jobs", "1")
    done.returncode = done.exit_code
    return done


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_on_stdout_stands_alone():
    done = command(
        "simulate", FUZZ_A, UNET, "--json", "-", "--budget", "0.5,0.9", "--heuristic", "msps,lru"
    )
    found = rows(done.stdout)
    assert len(found) == 2 * 2 * 2
    assert [row["log"] for row in found] == [FUZZ_A] * 4 + [UNET] * 4
    assert "all compute, in terms of that:" in done.stderr


def test_a_sample_has_a_row_for_each_seed():
    arguments = (UNET, "--budget", "0.6", "--least-size-share", "0.01", "--json", "-")
    found = rows(simulate(*arguments, "--sampling", "sqrt", "--seed", "0,1").stdout)
    assert [row["seed"] for row in found] == [0, 1]
    assert {(row["sampling"], row["least_size_share"]) for row in found} == {("sqrt", 0.01)}
    (plain,) = rows(simulate(*arguments).stdout)
    assert (plain["sampling"], plain["seed"]) == ("none", None)
    assert len({row["decisions_sha256"] for row in (*found, plain)}) == 3


def test_a_table_is_on_stdout_otherwise_and_the_file_has_the_rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    done = command("simulate", UNET, "--budget", "0.6", "--json", file)
    assert done.stderr == ""
    (row,) = rows(file.read_text())
    assert row["status"] == "ok"
    assert f"{row['total_compute'] / row['base_compute']:.3f}x" in done.stdout


def test_a_fixed_heap_loses_more_than_one_whose_chunks_move():
    arguments = (UNET, "--semantics", "runtime", "--budget", "0.7", "--chunk", "64KiB")
    arguments += ("--placement", "first-fit")
    # The other ways to make room evict rather than remap where that is cheap.
    arguments += ("--room", "single")
    found = {}
    for space in ("heap", "fixed"):
        (found[space],) = rows(simulate(*arguments, "--space", space, "--json", "-").stdout)
    assert {row["chunk_bytes"] for row in found.values()} == {1 << 16}
    assert {row["placement"] for row in found.values()} == {"first-fit"}
    assert found["fixed"]["remaps"] == 0
    assert found["fixed"]["lost_bytes"] > found["heap"]["lost_bytes"]
    assert found["fixed"]["scattered_evictions"] > found["heap"]["scattered_evictions"]
    shown = simulate(*arguments, "--space", "fixed").stdout
    assert f"{found['fixed']['scattered_evictions']}" in shown


def test_a_picture_is_drawn_if_it_is_asked_for(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    for name in ("plot.png", "folder/plot.svg"):
        done = simulate(
            *(FUZZ_A, UNET, "--plot", tmp_path / name, "--budget", "0.3..1.0:0.35"),
            *("--heuristic", "lru,random", "--seed", "0,1"),
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget: 0 bytes in budget '0'; allowed: ratios"),
        (["--heuristic", "best"], "--heuristic: unknown heuristic 'best'; allowed: dtr-full"),
        (["--dealloc", "never"], "--dealloc: 'never'; allowed: eager, banish, ignore, lazy, auto"),
        (
            ["--heuristic", "dtr-eqclass", "--dealloc", "banish"],
            "heuristic 'dtr-eqclass' with dealloc 'banish'",
        ),
        (["--seed", "x"], "--seed: seed 'x'; allowed"),
        (["--space", "heap"], "--space heap needs --semantics runtime"),
        (["--space", "fixed"], "--space fixed needs --semantics runtime"),
        (["--chunk", "4KiB"], "--chunk needs --space heap or fixed"),
        (["--moving", "1GB"], "--moving needs --space heap or fixed"),
        (["--placement", "two-ended"], "--placement two-ended needs --space heap or fixed"),
        (["--space", "disk"], "'disk' is not one of"),
        (["--thrash", "0.5"], "--thrash is 0.5; allowed: 1 and more"),
        (["--plot", "x.doc"], "--plot: 'x.doc'; allowed endings"),
        (["--json", "/nowhere/x"], "--json: /nowhere/x: No such file or directory"),
    ],
)
def test_wrong_usage_is_named(arguments, message):
    done = simulate(FUZZ_A, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_log_is_needed():
    command("simulate", status=2)
    command("simulate", FUZZ_A, "--jobs", "0", status=2)
    done = simulate("there is none.log")
    assert done.returncode == 2
    assert "there is no log 'there is none.log'" in done.stderr


def lines_of(path):
    with lzma.open(path, "rt") as file:
        return file.readlines()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "line.log",
            "".join([*lines_of(FUZZ_A)[:20], "{damaged\n", *lines_of(FUZZ_A)[20:]]).encode(),
            "line 21: ",
        ),
        ("folder.log", None, "Is a directory"),
    ],
)
def test_a_damaged_log_is_named_with_its_line_and_nothing_is_written(
    tmp_path, name, content, message
):
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    out, plot = tmp_path / "rows.jsonl", tmp_path / "plot.png"
    done = command("simulate", FUZZ_A, path, "--json", out, "--plot", plot, status=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert str(path) in line
    assert message in line
    assert not out.exists()
    assert not plot.exists()


@pytest.fixture
def recorded(tmp_path):
    """Writes the log of a job with so many steps, as DTR_ALLOC_LOG does."""

    def write(steps, recorded=True):
        path = tmp_path / f"{steps}-{recorded}.log"
        with Writer(path, recorded=recorded) as log:
            log.write(Constant("w"), Memory("w", 4096))
            for step in range(steps):
                made = ["w"]
                for name in "abcdefgh":
                    made.append(f"{name}{step}")
                    call = Call(name, (made[-2],), (made[-1],), 1000)
                    log.write(call, Memory(made[-1], 4096), Alias(made[-1], -1))
                log.write(*map(Release, made[1:]))
        return str(path)

    return write


class TestLogsOfJobs:
    def test_they_have_the_semantics_of_the_engine(self, recorded):
        for of_a_job, semantics in ((True, "runtime"), (False, "simrd")):
            done = simulate(recorded(4, of_a_job), "--budget", "1.0", "--json", "-")
            assert done.returncode == 0, done.stderr
            (row,) = rows(done.stdout)
            assert row["semantics"] == semantics
            assert "no step is repeated" not in done.stderr
        done = simulate(recorded(4), "--budget", "1.0", "--semantics", "simrd", "--json", "-")
        assert rows(done.stdout)[0]["semantics"] == "simrd"

    def test_a_log_without_a_repeated_step_is_warned_of(self, recorded):
        done = simulate(recorded(1), "--budget", "1.0", "--json", "-")
        assert done.returncode == 0
        assert "1-True.log: no step is repeated in it" in done.stderr
        assert "no step" not in simulate(recorded(1, False), "--budget", "1.0").stderr

    def test_logs_of_both_kinds_are_asked_about(self, recorded):
        done = simulate(recorded(4), UNET, "--budget", "1.0")
        assert done.returncode == 2
        assert "say --semantics" in done.stderr
