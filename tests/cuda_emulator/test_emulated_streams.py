"""Several streams and several devices: the same bits, and no work beside work that it needs.

Queued work stays unfinished until somebody waits for it, so whatever may overlap does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LAYERS = """
import hashlib
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)

def layers(count, device="cuda", width=128):
    parts = []
    for _ in range(count):
        parts += [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*parts).to(device)

def digest(*tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().numpy().tobytes())
    print(found.hexdigest())
"""

TWO_STREAMS = (
    LAYERS
    + """
left, right, head = layers(5), layers(5), nn.Linear(128, 4).cuda()
parameters = [*left.parameters(), *right.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
one, two = torch.cuda.Stream(), torch.cuda.Stream()
x = torch.randn(512, 128, device="cuda")
for step in range(4):
    optimizer.zero_grad()
    main = torch.cuda.current_stream()
    one.wait_stream(main)
    two.wait_stream(main)
    with torch.cuda.stream(one):
        a = left(x)
    with torch.cuda.stream(two):
        b = right(x)
    main.wait_stream(one)
    main.wait_stream(two)
    loss = head(a + b).square().mean()
    loss.backward()
    optimizer.step()
digest(loss, *parameters)
"""
)


def over_two_devices(loss: str, digested: str = "") -> str:
    """Steps of layers on two devices, the first of which has the inputs."""
    return (
        LAYERS
        + f"""
first, second = layers(6, "cuda:0"), layers(6, "cuda:1")
parameters = [*first.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
x = torch.randn(512, 128).to("cuda:0")
for step in range(3):
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
digest(loss, *parameters, {digested})
"""
    )


TWO_DEVICES = over_two_devices(
    """a = first(x.to("cuda:0")).square().mean()
    b = second(x.to("cuda:1")).square().mean()
    loss = a.to("cuda:1") + b""",
    "*(torch.cuda.get_rng_state(device) for device in (0, 1))",
)
PIPELINE = over_two_devices("""loss = second(first(x).to("cuda:1")).square().mean()""")
PEERS = over_two_devices(
    """middle = first(x)
    turned = middle.t().to("cuda:1").t() + middle.double().to("cuda:1", torch.float32)
    loss = second(turned).square().mean()"""
)

CASES = {
    "a model over two streams, without record_stream": (TWO_STREAMS, 1, ("5MiB", "3MiB")),
    "a model on each of two devices": (TWO_DEVICES, 2, ("4MiB", "3MiB")),
    "a model over two devices": (PIPELINE, 2, ("4MiB", "3MiB")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_under_every_budget(machine, name):
    script, devices, budgets = CASES[name]
    expected = machine.run(script, devices=devices)
    run = machine.run(script, devices=devices, budget="unlimited")
    assert run.output == expected.output
    for budget in budgets:
        run = machine.run(script, devices=devices, budget=budget)
        assert run.output == expected.output
        assert run.stats["evictions"] > 0
        assert run.stats["rematerializations"] > 0


def test_devices_that_are_connected_copy_by_kernels_that_use_each_others_memory(machine):
    expected = machine.run(PEERS, devices=2, peers=True)
    for budget in ("unlimited", "4MiB", "3MiB"):
        run = machine.run(PEERS, devices=2, peers=True, budget=budget)
        assert run.output == expected.output
    assert run.stats["evictions"] > 0
    assert run.stats["rematerializations"] > 0


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_random_job_over_four_streams_computes_the_same_bits_in_half_its_memory(machine, seed):
    fuzz = Path(__file__).parent / "fuzz.py"
    expected = machine.run(fuzz, seed, 200)
    run = machine.run(fuzz, seed, 200, budget="2MiB")
    assert run.output == expected.output
    assert run.stats["evictions"] > 0
    assert run.report["peak_bytes"] < 0.6 * expected.report["peak_bytes"]


RECORDED = """
import torch
import dtr_alloc
side = torch.cuda.Stream()
x = torch.randn(1 << 16, device="cuda")
y = x * 2
expected = y.cpu()
y.record_stream(side)
assert dtr_alloc.evict(y)
y.record_stream(side)
assert dtr_alloc.is_resident(y)
assert dtr_alloc.evict(y)
assert torch.equal(y.cpu(), expected)
"""


def test_a_tensor_with_a_recorded_stream_can_be_evicted(machine):
    machine.run(RECORDED, budget="8MiB")


def test_the_stand_in_reports_work_that_could_run_beside_what_it_needs(machine):
    """Without this the tests above would prove nothing."""
    careless = TWO_STREAMS.replace("    main.wait_stream(two)\n", "")
    run = machine.run(careless, clean=False)
    assert run.status == 0
    assert any("overlaps unfinished work" in text for text in run.report["violations"])
