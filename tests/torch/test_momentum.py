"""An optimizer's state that is evicted between its steps does not keep the gradients."""

from __future__ import annotations

import torch
from harness import checked_session, one_thread  # noqa: F401
from torch import Tensor, nn

WIDTH, LAYERS, BATCH = 256, 8, 512
PARAMETER_BYTES = 4 * LAYERS * WIDTH * (WIDTH + 1)


def train() -> list[Tensor]:
    """The gradients live until the next forward pass is done, which evicts momentum buffers."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, foreach=False)
    for _ in range(6):
        loss = (net(torch.randn(BATCH, WIDTH)) - torch.randn(BATCH, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def test_sgd_with_momentum_trains_where_adamw_does() -> None:
    """It ran out of memory below six times its parameters: each step left gradients behind."""
    expected = train()
    with checked_session(int(4.5 * PARAMETER_BYTES)):
        got = train()
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
