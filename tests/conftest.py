"""What tests of several folders share."""

import ast
import gc
import os
import pickle
import signal
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

with suppress(ImportError):  # not where only torch and pytest are installed
    from hypothesis import HealthCheck, settings

    # A slow machine is no failure.
    settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("untimed")

# A shell starts what runs in its background without Ctrl-C, and so all that that starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that tests start import the package that the tests import, whatever their folder is. The
# core and the compiled bridge, too, are then those that the tests know.
PACKAGE = find_spec("dtr_alloc")
if PACKAGE is not None:
    paths = [str(Path(PACKAGE.origin).parent.parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

SNAPSHOTS = Path(__file__).parent / "data/torch_snapshots"


@pytest.fixture(scope="module", autouse=True)
def imported_objects_are_left_out_of_collections():
    """PyTorch alone, once imported, is a million objects, and tests collect garbage often."""
    gc.collect()
    gc.freeze()


def with_frames(value, frames):
    """The value with its stacks, which are lists of rows of `frames`, as PyTorch writes them."""
    if isinstance(value, list):
        return [with_frames(item, frames) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: [dict(zip(("name", "filename", "line"), frames[row], strict=True)) for row in item]
        if key == "frames"
        else with_frames(item, frames)
        for key, item in value.items()
    }


@pytest.fixture(scope="session")
def snapshots(tmp_path_factory):
    """A folder with tests/data/torch_snapshots as the pickles that PyTorch wrote."""
    folder = tmp_path_factory.mktemp("torch_snapshots")
    for path in SNAPSHOTS.glob("*.txt"):
        text = ast.literal_eval(path.read_text())
        snapshot = with_frames(text["snapshot"], text["frames"])
        (folder / f"{path.stem}.pickle").write_bytes(pickle.dumps(snapshot))
    return folder
