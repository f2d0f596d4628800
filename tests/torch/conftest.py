"""What tests with PyTorch need first."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def the_bridge_is_compiled():
    """So that no test's process says that it compiles it."""
    pytest.importorskip("torch")
    from dtr_alloc.torch import bridge

    bridge.build("cpu")
