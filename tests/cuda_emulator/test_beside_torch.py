"""What shares the device with PyTorch's tensors: CuPy, other libraries, other processes."""

from pathlib import Path

from emulated import run

STAND_IN = Path(__file__).parents[1] / "native"

CUPY = f"""
import sys
sys.path.append({str(STAND_IN)!r})
import torch, dtr_alloc, dtr_alloc.cupy
from cupy_stand_in import Situation, Stream, stand_in

cupy = sys.modules["cupy"] = stand_in()
cupy.cuda.get_device_id = torch.cuda.current_device
cupy.cuda.get_current_stream = lambda: Stream(torch.cuda.current_stream().cuda_stream)
cupy.get_default_memory_pool = Situation
"""

MIB = 1 << 20


def test_an_array_of_cupys_takes_the_place_of_tensors_that_come_back():
    done = run(
        CUPY
        + """
start = torch.arange(65536.0).to("cuda")
tensors = [start * k for k in range(24)]
dtr_alloc.cupy.enable()
before = dtr_alloc.stats()["evictions"]
arrays = [cupy.cuda.alloc(1 << 20) for _ in range(5)]
FACTS["evicted"] = sum(not dtr_alloc.is_resident(t) for t in tensors)
for number, array in enumerate(arrays):
    # Every second one goes, on another stream than it was made on.
    with torch.cuda.stream(torch.cuda.Stream()):
        arrays[number] = None if number % 2 else array
del array
print(all(torch.equal(t.cpu(), torch.arange(65536.0) * k) for k, t in enumerate(tensors)))
try:
    cupy.cuda.alloc(64 << 20)
except cupy.cuda.memory.OutOfMemoryError as error:
    print(error)
dtr_alloc.cupy.disable()
""",
        budget=8 * MIB,
    )
    same, error = done.output.splitlines()
    assert same == "True"
    assert error.startswith("dtr_alloc: out of memory: requested 64.0 MiB")
    assert done.report["evicted"] >= 12  # a quarter MiB each
    assert done.report["peak_bytes"] <= 8 * MIB


def test_who_is_enabled_first_makes_the_heap_for_both():
    """CuPy is asked for memory before PyTorch uses the device."""
    done = run(
        CUPY
        + """
cupy.cuda.get_device_id = lambda: 0
cupy.cuda.get_current_stream = lambda: Stream(0)
dtr_alloc.cupy.enable("4MiB")
first = cupy.cuda.alloc(1 << 20)
dtr_alloc.enable("6MiB", device="cuda")
tensor = torch.ones(1 << 18, device="cuda")
stats = dtr_alloc.stats()
print(stats["budget_bytes"] >> 20, stats["allocated_bytes"] >> 20)
print(torch.cuda.memory_allocated() >> 20)
dtr_alloc.cupy.disable()
print(dtr_alloc.stats()["budget_bytes"] >> 20)
"""
    )
    assert done.output.split() == ["6", "2", "2", "6"]


def test_what_depends_on_shared_memory_is_computed_before_others_may_write():
    done = run(
        """
import torch, dtr_alloc
shared = torch.arange(65536.0).to("cuda") + 1
derived = shared * 2
dtr_alloc.evict(derived)
capsule = shared.__dlpack__(stream=1)
print(dtr_alloc.is_resident(derived), dtr_alloc.evict(derived), dtr_alloc.evict(shared))
later = shared * 3
print(dtr_alloc.evict(later), dtr_alloc.evict(later + 1))
view = torch.from_dlpack(shared)
print(dtr_alloc.evict(view), dtr_alloc.evict(view * 2))
""",
        budget="unlimited",
    )
    assert done.output.splitlines() == ["True False False", "False True", "False False"]
