"""What a job cannot do on CUDA under a budget ends with the reason, where it can be read.

Needs torch, any build; no GPU. Tensors on the device "meta" stand for those on a GPU. Each case is
a process of its own, because refusals stay.
"""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")
pytest.importorskip(
    "dtr_alloc._core", reason="the core is not built here (pip install -e .)", exc_type=ImportError
)

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


def printed(code):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DTR_ALLOC_")}
    result = subprocess.run(
        [sys.executable, "-c", PREPARE + code],
        env={**clean, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


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


def test_sending_a_gpu_tensor_fails_at_the_sender():
    code = """
receiver, sender = mp.Pipe(duplex=False)
for tensor in (torch.empty(3, device="meta"), torch.nn.Parameter(torch.empty(3, device="meta"))):
    print(refused(lambda: sender.send(tensor)))
print(receiver.poll())
sender.send(torch.ones(3))
print(receiver.recv().sum().item())
"""
    *refused, sent, total = printed(code)
    assert all("tensor.cpu()" in message for message in refused)
    assert (sent, total) == ("False", "3.0")


def test_a_gpu_tensor_is_not_marked_as_shared_and_a_cpu_tensor_is():
    code = """
print(refused(lambda: torch.empty(3, device="meta").share_memory_()))
print(refused(lambda: torch.nn.Linear(2, 2, device="meta").share_memory()))
print(torch.ones(3).share_memory_().is_shared())
"""
    *refused, shared = printed(code)
    assert all("cannot be shared" in message for message in refused)
    assert shared == "True"


def test_the_job_cannot_put_another_allocator_in_our_place():
    code = """
class Other:
    def allocator(self):
        return self
print(refused(lambda: torch.cuda.memory.change_current_allocator(Other())))
"""
    (message,) = printed(code)
    assert "cannot be changed" in message
