"""Jobs on emulated CUDA, a process each. Needs a CUDA build of torch, and no GPU."""

from pathlib import Path

import emulated
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    emulated.skip(items, Path(__file__).parent, emulated.why_not)
