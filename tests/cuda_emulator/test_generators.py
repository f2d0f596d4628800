"""Generators of the CUDA stand-in that tests/gpu cannot reach: RNNs, and a second device."""

from pathlib import Path

from emulated import run

RNN_FLAG = """
import ctypes
import subprocess
import sys
from pathlib import Path
import torch
import dtr_alloc
from dtr_alloc import compiler
from dtr_alloc.torch import bridge

library = Path(__file__).with_suffix(".so")
subprocess.run(bridge.command(compiler.find(), "cuda", [sys.argv[1]], library), check=True)
begins_anew = ctypes.CDLL(str(library)).rnn_begins_anew

torch.cuda.init()
torch.cuda.manual_seed(3)
assert [begins_anew(), begins_anew()] == [1, 0]
drawn = torch.randn(1 << 16, device="cuda")
expected = drawn.cpu()
assert begins_anew() == 0
assert dtr_alloc.evict(drawn)
assert torch.equal(drawn.cpu(), expected)
assert begins_anew() == 0
torch.cuda.manual_seed(4)
assert dtr_alloc.evict(drawn)
assert torch.equal(drawn.cpu(), expected)
assert [begins_anew(), begins_anew()] == [1, 0]
"""


def test_only_the_jobs_own_seeding_has_rnns_begin_anew_with_their_dropout():
    run(RNN_FLAG, Path(__file__).with_name("rnn_flag.cpp"), budget="64MiB")


OTHER_DEVICE = """
import torch
import dtr_alloc
torch.cuda.manual_seed_all(1)
for device in (0, 1):
    assert abs(torch.cuda.get_per_process_memory_fraction(device) - 0.6) < 1e-6
torch.cuda.set_device(1)
MAKERS = {
    "ones": lambda: torch.ones(1 << 16, device="cuda"),
    "randn": lambda: torch.randn(1 << 16, device="cuda"),
    "a sum": lambda: torch.arange(1 << 16, device="cuda") + 1,
}
for name, make in MAKERS.items():
    x = make() + 0
    expected = x.cpu()
    y = x * 2
    states = [torch.cuda.get_rng_state(device) for device in (0, 1)]
    made = make()
    copy = made.cpu()
    later = [torch.cuda.get_rng_state(device) for device in (0, 1)]
    torch.cuda.set_device(0)
    for tensor in (x, y, made):
        assert tensor.device.index == 1
        assert dtr_alloc.evict(tensor), name
    assert torch.equal(y.cpu(), expected * 2), name
    assert torch.equal(x.cpu(), expected), name
    assert torch.equal(made.cpu(), copy), name
    assert made.device.index == 1, name
    for device in (0, 1):
        assert torch.equal(torch.cuda.get_rng_state(device), later[device]), name
    torch.cuda.set_device(1)
"""


def test_what_was_made_on_the_current_device_is_made_there_again_in_its_own_share():
    assert run(OTHER_DEVICE, budget="60%", devices=2).stats["rematerializations"] > 0
