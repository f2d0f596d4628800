"""The bound that no schedule of an op log goes below (bench/studies/floor.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.studies.floor import least_bytes
from dtr_alloc.oplog import compile_log

START = '{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}'


def made(name: str, size: int, args: str = "") -> list[str]:
    return [
        f'{{"INSTRUCTION":"CALL","NAME":"f","ARGS":[{args}],"RESULT":["{name}"],"TIME":"1"}}',
        f'{{"INSTRUCTION":"MEMORY","NAME":"{name}","MEMORY":"{size}"}}',
        f'{{"INSTRUCTION":"ALIAS","NAME":"{name}","ALIAS":"-1"}}',
    ]


def constant(name: str, size: int) -> list[str]:
    return [
        f'{{"INSTRUCTION":"CONSTANT","NAME":"{name}"}}',
        f'{{"INSTRUCTION":"MEMORY","NAME":"{name}","MEMORY":"{size}"}}',
    ]


def workspace(trace: str) -> list[str]:
    return [f'{{"INSTRUCTION":"ANNOTATE","ANNOTATION":"WORKSPACE","TRACE":[{trace}]}}']


@pytest.mark.parametrize(
    ("trace", "beside"),
    [
        ([], 30),
        (workspace('"+8","=0","+32","-0"'), 70),
        (workspace('"+64","-0","=0"'), 64),
        (workspace('"+64","-0"'), 64),
        (workspace('"+16","-0"'), 30),
    ],
    ids=["its result alone", "beside the result", "freed before it", "and after", "smaller"],
)
def test_an_operator_needs_what_it_reads_makes_and_allocates_meanwhile(
    trace: list[str], beside: int, tmp_path: Path
) -> None:
    lines = [START, *constant("c", 100), *made("x", 20, '"c"'), *trace, *made("y", 30, '"x"')]
    log = tmp_path / "job.log"
    log.write_text("\n".join([*lines, ""]))
    assert least_bytes(compile_log(log)) == 100 + 20 + beside
