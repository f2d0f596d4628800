"""Kernels that add atomically repeat themselves under deterministic settings."""

import pytest
import torch
from bits import assert_recomputes
from own_process import DEVICE, own_process
from torch.nn import functional as F

ROWS, WIDTH = (64, 32) if DEVICE == "cpu" else (512, 256)


def repeated_rows():
    """Indices in which every row comes many times."""
    return torch.arange(64 * ROWS, device=DEVICE) % ROWS


def embedding_gradient():
    table = torch.zeros(ROWS, WIDTH, device=DEVICE, requires_grad=True)
    out = F.embedding(repeated_rows(), table)
    (gradient,) = torch.autograd.grad(out, table, torch.randn_like(out))
    return gradient


def added(name):
    base = torch.zeros(ROWS, WIDTH, device=DEVICE)
    source = torch.randn(64 * ROWS, WIDTH, device=DEVICE)
    rows = repeated_rows()
    if name == "index_add":
        return base.index_add(0, rows, source)
    if name == "index_put":
        return base.index_put((rows,), source, accumulate=True)
    return base.scatter_add(0, rows[:, None].expand_as(source), source)


@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add", "embedding backward"])
@own_process(gpu_only="atomic additions")
def test_sums_over_repeated_rows_are_the_same_sums(name):
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    assert_recomputes(embedding_gradient if name == "embedding backward" else lambda: added(name))
