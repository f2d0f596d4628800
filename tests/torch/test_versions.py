"""An older PyTorch than any that was tried is refused; a newer one is tried, and is named where
something fails."""

import subprocess
import tomllib

import pytest
from harness import ROOT, python

from dtr_alloc.torch_versions import NEWEST, OLDEST, TRIED

OLD = f"{OLDEST[0]}.{OLDEST[1] - 1}.1+cpu"
NEW = f"{NEWEST[0]}.{NEWEST[1] + 1}.0a0+git1234567"
NEWER = f"PyTorch {NEW} is newer than any that dtr_alloc was tried with ({TRIED})"

CHILD = """
import sys
import torch
from dtr_alloc.torch import bridge
name, tell = bridge.library_name("cpu"), bridge.library_name
version, prepare = sys.argv[1:]
torch.__version__ = version
bridge.library_name = lambda device: name  # no other is compiled
exec(prepare)
from dtr_alloc import _autoload
_autoload.switch_on()
print(torch.ones(1000).add(1).sum().item())
"""


def job(version: str, prepare: str, status: int = 1) -> subprocess.CompletedProcess[str]:
    """A job that is switched on by the environment, under a PyTorch that gives itself a version."""
    environ = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "budget": "1GiB", "device": "cpu"}
    return python("-W", "ignore", "-c", CHILD, version, prepare, status=status, **environ)


def test_an_older_one_is_refused_before_anything_of_it_is_used():
    unload = "for name in [n for n in sys.modules if n.startswith('dtr_alloc')]:"
    refused = job(OLD, f"{unload} del sys.modules[name]\ndel torch._C")
    (line,) = refused.stderr.splitlines()
    assert f"PyTorch {OLD} is older than any that dtr_alloc works with (tried: {TRIED})" in line


def test_a_newer_one_is_tried_and_that_is_said_in_a_line():
    done = job(NEW, "", status=0)
    assert done.stdout == "2000.0\n"
    assert done.stderr == f"dtr_alloc: {NEWER}\n"


@pytest.mark.parametrize(
    ("prepare", "what"),
    [
        ("del torch._ops.OpOverload", "ImportError: cannot import name 'OpOverload'"),
        ("del torch.save", "AttributeError: module 'torch' has no attribute 'save'"),
        (
            "import os; os.environ['CXX'] = 'false'; bridge.library_name = tell",
            "the bridge to PyTorch was not built by /",
        ),
    ],
    ids=["import", "start", "compiler"],
)
def test_what_fails_under_a_newer_one_is_named_with_it(prepare, what):
    failed = job(NEW, prepare)
    assert what in failed.stderr
    assert f". {NEWER}, which may be why. " in failed.stderr.splitlines()[-1]


def test_the_oldest_is_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={OLDEST[0]}.{OLDEST[1]}"]
