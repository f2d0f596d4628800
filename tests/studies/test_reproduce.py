"""Every study computes, and draws from its JSON alone. Needs the core and matplotlib."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from dtr_alloc.cli import commands
from dtr_alloc.studies import study

SVG = b"<svg"


def reproduce(*arguments):
    return CliRunner().invoke(commands, ["reproduce", *map(str, arguments)])


@pytest.mark.parametrize("name", study.NAMES)
def test_a_study_computes_and_its_pictures_come_from_its_json(name, tmp_path):
    folder = published_logs()
    logs = [] if folder is None else ["--logs", folder]
    done = reproduce(name, "--smoke", "--jobs", 1, "--out", tmp_path, *logs)
    if done.exit_code and "--logs" in done.output:
        pytest.skip("the logs that the DTR paper published are not here (DTR_ALLOC_SIMRD_LOGS)")
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


def published_logs():
    folder = os.environ.get("DTR_ALLOC_SIMRD_LOGS")
    return Path(folder) if folder else None


def test_an_unknown_study_is_named():
    done = reproduce("nothing")
    assert done.exit_code == 2
    assert "no study 'nothing'" in done.output


def test_without_a_name_the_studies_are_listed():
    done = reproduce()
    assert done.exit_code == 0
    assert all(name in done.output for name in study.NAMES)
