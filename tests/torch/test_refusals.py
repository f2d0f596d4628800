"""What a job cannot have or do on CUDA under a budget ends with the reason, where it can be read.

No GPU is needed: tensors on the device "meta" stand for those on a GPU. Each case is a process of
its own, because refusals stay, and must not leave behind what a process has once.
"""

import pytest
import torch
from harness import python

PREPARE = """
import threading, torch, torch.multiprocessing as mp
from dtr_alloc.torch import unsupported
from dtr_alloc.core import StateError
torch._C._cuda_changeCurrentAllocator = lambda allocator: print("changed")
unsupported.install("meta")
unsupported.install("meta")

def refused(act):
    try:
        act()
    except StateError as error:
        return str(error)
"""


def printed(code: str) -> list[str]:
    return python("-c", PREPARE + code).stdout.splitlines()


def test_a_loader_whose_workers_return_gpu_tensors_fails_where_the_job_waits():
    """The workers pickle on a thread of their own: an error there would leave the job waiting."""
    code = """
class OnGpu(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.empty(3, device="meta")

loader = torch.utils.data.DataLoader(OnGpu(), num_workers=1, batch_size=None)
print(refused(lambda: next(iter(loader))))
"""
    (message,) = printed(code)
    assert "cannot be shared with other processes" in message
    assert "returns CPU tensors" in message


def test_a_gpu_tensor_is_not_shared_or_sent_and_a_cpu_tensor_is():
    """Sending fails at the sender. And nobody puts another allocator in our place."""
    code = """
receiver, sender = mp.Pipe(duplex=False)
gpu = torch.empty(3, device="meta")

class Other:
    def allocator(self):
        return self

for act in (
    lambda: sender.send(gpu),
    lambda: sender.send(torch.nn.Parameter(gpu)),
    gpu.share_memory_,
    torch.nn.Linear(2, 2, device="meta").share_memory,
    lambda: torch.cuda.memory.change_current_allocator(Other()),
):
    print(refused(act))
print(receiver.poll())
sender.send(torch.ones(3))
print(receiver.recv().sum().item(), torch.ones(3).share_memory_().is_shared())
"""
    *sent, shared, whole, allocator, polled, done = printed(code)
    assert all("tensor.cpu()" in message for message in sent)
    assert "cannot be shared" in shared
    assert "cannot be shared" in whole
    assert "cannot be changed" in allocator
    assert (polled, done) == ("False", "3.0 True")


# ---- a budget on CUDA ----

ENABLE = """
import torch, dtr_alloc
{prepare}
try:
    dtr_alloc.enable(budget="1GiB"{device})
except dtr_alloc.{error} as error:
    print(error)
assert not dtr_alloc.is_enabled()
with dtr_alloc.session(budget="unlimited", device="cpu"):
    made = torch.ones(1000) + 1
    assert dtr_alloc.evict(made)
    assert made.sum().item() == 2000
    dtr_alloc.check_invariants()
"""
"""After the refusal, what needs allocator, recorder and rematerialization on the CPU."""
IN_USE = "torch.cuda.is_initialized = lambda: True"
TOO_LATE = "enable dtr_alloc before the first CUDA call"


@pytest.mark.parametrize(
    ("device", "prepare", "error", "words"),
    [
        pytest.param(
            *("cuda", "", "DriverError", f"PyTorch {torch.__version__} is built without CUDA"),
            marks=pytest.mark.skipif(torch.version.cuda is not None, reason="it has CUDA"),
        ),
        # As on a CUDA build: the driver's library is missing, or it hides all devices.
        ("cuda", "torch.version.cuda = '13.0'", "DriverError", "device 'cuda': "),
        ("cuda", IN_USE, "StateError", TOO_LATE),
        ("", IN_USE, "StateError", TOO_LATE),
    ],
    ids=["CPU build", "no device", "in use", "in use, auto"],
)
def test_a_budget_that_cannot_be_had_is_refused_and_the_cpu_stays_usable(
    device, prepare, error, words
):
    device = device and f", device={device!r}"
    code = ENABLE.format(device=device, prepare=prepare, error=error)
    message = python("-c", code).stdout
    assert words in message
    if error == "DriverError" and prepare:
        assert any(each in message for each in ("libcuda", "CUDA_ERROR", "no device"))


def test_auto_takes_the_cpu_where_there_is_no_cuda_and_initializes_nothing():
    code = (
        "import torch, dtr_alloc\n"
        "dtr_alloc.enable(budget='unlimited')\n"
        "made = torch.ones(1000) + 1\n"
        "print(dtr_alloc.evict(made), torch.cuda.is_initialized())\n"
        "dtr_alloc.disable()\n"
    )
    assert python("-c", code).stdout == "True False\n"
