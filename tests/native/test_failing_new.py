"""Wherever operator new fails, the engine's rules hold, and the job ends right. Needs the native
build.

In a process of its own, in which the core uses an operator new that fails (counted_new.cpp).
"""

import json
import os
import sys
from pathlib import Path

import pytest
from commands import python


def run_jobs(*arguments):
    script = Path(__file__).with_name("failing_new.py")
    return json.loads(python(script, *arguments, PYTHONPATH=os.pathsep.join(sys.path)).stdout)


@pytest.mark.parametrize("step", [100, pytest.param(3, marks=pytest.mark.long)])
def test_a_job_survives_an_operator_new_that_fails(counted_new, step):
    found = run_jobs(counted_new, "deep", step, 0)
    assert found["jobs"] * step > 2000  # as many are called
    assert found["refused"] > found["jobs"] / 2


@pytest.mark.long
def test_a_job_survives_one_that_fails_for_much(counted_new):
    found = run_jobs(counted_new, "wide", 1, 1 << 20)
    assert found["jobs"] > 5
