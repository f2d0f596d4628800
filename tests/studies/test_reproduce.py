"""Every study computes, and draws from its JSON alone. Needs the core and matplotlib."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from commands import invoke

from bench.studies import study
from bench.studies.__main__ import command

SVG = b"<svg"
RESULTS = Path(__file__).parents[2] / "bench/results/reproduce"


reproduce = partial(invoke, command)


@pytest.mark.long
@pytest.mark.parametrize("name", study.NAMES)
def test_a_study_computes_and_its_pictures_come_from_its_json(name, tmp_path):
    folder = published_logs()
    logs = [] if folder is None else ["--logs", folder]
    done = reproduce(name, "--smoke", "--jobs", 1, "--out", tmp_path, *logs)
    if done.exit_code and "--logs" in done.output:
        pytest.skip("the logs that the DTR paper published are not here (SIMRD_LOGS)")
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["study"] == name
    assert document["smoke"]
    pictures = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert f"{name}.svg" in pictures
    assert all(SVG in content for content in pictures.values())
    again = reproduce(name, "--redraw", "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")} == pictures


def test_a_committed_result_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    shutil.copy(RESULTS / "adversary.json", tmp_path)
    assert reproduce("adversary", "--redraw", "--out", tmp_path).exit_code == 0
    assert SVG in (tmp_path / "adversary.svg").read_bytes()


def published_logs():
    folder = os.environ.get("SIMRD_LOGS")
    return Path(folder) if folder else None


def test_an_unknown_study_is_named():
    done = reproduce("nothing")
    assert done.exit_code == 2
    assert "no study 'nothing'" in done.output


def test_without_a_name_the_studies_are_listed():
    done = reproduce()
    assert done.exit_code == 0
    assert all(name in done.output for name in study.NAMES)
