"""What tests with PyTorch need first."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def the_bridge_is_compiled():
    """So that no test's process says that it compiles it."""
    pytest.importorskip("torch")
    from dtr_alloc.torch import bridge

    bridge.build("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Splits by timing cannot hide a wrong recomputation, or change what operators allocate."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
