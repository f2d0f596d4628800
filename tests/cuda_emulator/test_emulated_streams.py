"""Several streams and several devices: the same bits, and no work beside work that it needs.

Queued work stays unfinished until somebody waits for it, so whatever may overlap does.
"""

from pathlib import Path

import pytest
from emulated import run


def over_two_devices(loss: str, digested: str = "") -> str:
    """Steps of layers on two devices, the first of which has the inputs."""
    return f"""
import hashlib
import torch
from torch import nn
torch.manual_seed(0)

def layers(device):
    parts = []
    for _ in range(6):
        parts += [nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*parts).to(device)

first, second = layers("cuda:0"), layers("cuda:1")
parameters = [*first.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
x = torch.randn(512, 128).to("cuda:0")
for step in range(3):
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
found = hashlib.sha256()
for tensor in (loss, *parameters, {digested}):
    found.update(tensor.detach().cpu().numpy().tobytes())
print(found.hexdigest())
"""


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
    "a model on each of two devices": (TWO_DEVICES, False),
    "a model over two devices": (PIPELINE, False),
    "devices that copy by kernels that use each other's memory": (PEERS, True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_under_every_budget(name):
    script, peers = CASES[name]
    expected = run(script, devices=2, peers=peers)
    for budget in ("unlimited", "4MiB", "3MiB"):
        done = run(script, devices=2, peers=peers, budget=budget)
        assert done.output == expected.output
        if budget != "unlimited":
            assert done.stats["evictions"] > 0
            assert done.stats["rematerializations"] > 0


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_random_job_over_four_streams_computes_the_same_bits_in_half_its_memory(seed):
    fuzz = Path(__file__).parent / "fuzz.py"
    expected = run(fuzz, seed, 200)
    done = run(fuzz, seed, 200, budget="2MiB")
    assert done.output == expected.output
    assert done.stats["evictions"] > 0
    assert done.report["peak_bytes"] < 0.6 * expected.report["peak_bytes"]


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


def test_a_tensor_with_a_recorded_stream_can_be_evicted():
    run(RECORDED, budget="8MiB")


CARELESS = """
import torch
x = torch.ones(1 << 16, device="cuda")
with torch.cuda.stream(torch.cuda.Stream()):
    y = x * 2
"""


def test_the_stand_in_reports_work_that_could_run_beside_what_it_needs():
    """Without this the tests above would prove nothing."""
    done = run(CARELESS, clean=False)
    assert done.status == 0
    assert any("overlaps unfinished work" in text for text in done.report["violations"])
