"""What existing jobs ask of torch.cuda goes on working, and tells of our memory."""

import pickle

import pytest
import torch
from bits import MIB
from own_process import DEVICE, busy, own_process

import dtr_alloc

STATISTICS = "torch.cuda's statistics"


@own_process(cuda_only=STATISTICS)
def test_statistics_follow_what_is_allocated():
    before = torch.cuda.memory_allocated()
    x = torch.ones(8 * MIB, device=DEVICE)
    assert torch.cuda.memory_allocated() >= before + 32 * MIB
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == dtr_alloc.stats()["allocated_bytes"]
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 32 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.memory_stats()["allocation.all.current"] >= 0
    assert "allocated" in torch.cuda.memory_summary().lower()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert isinstance(torch.cuda.memory_snapshot(), list)
    pickle.dumps(torch.cuda.memory._snapshot())
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.host_memory_stats() is not None
    held = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(MIB)
    assert torch.cuda.memory_allocated() == held + MIB
    torch.cuda.caching_allocator_delete(address)


@own_process(cuda_only=STATISTICS)
def test_what_another_allocator_would_have_to_do_is_refused_in_words():
    assert torch.cuda.get_allocator_backend() == "dtr_alloc"
    torch.cuda.memory._record_memory_history(enabled=None)
    for act in (
        torch.cuda.memory._record_memory_history,
        lambda: torch.cuda.memory.change_current_allocator(
            torch.cuda.memory._get_current_allocator()
        ),
    ):
        with pytest.raises(RuntimeError, match=r"^dtr_alloc: "):
            act()


@own_process(cuda_only=STATISTICS)
def test_an_evicted_tensor_counts_as_freed_until_it_comes_back():
    made = torch.ones(8 * MIB, device=DEVICE) * 2
    held = torch.cuda.memory_allocated()
    assert dtr_alloc.evict(made)
    assert torch.cuda.memory_allocated() <= held - 32 * MIB
    dtr_alloc.materialize(made)
    assert torch.cuda.memory_allocated() >= held


@pytest.mark.parametrize("how", ["empty_cache", "trim"])
@own_process(cuda_only="driver")
def test_free_memory_goes_back_to_the_driver_when_asked(how):
    torch.ones(1, device=DEVICE)
    x = torch.ones(64 * MIB, device=DEVICE)
    torch.cuda.synchronize()
    held = torch.cuda.memory_reserved()
    del x
    if how == "trim":
        dtr_alloc.trim()
    else:
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - 200 * MIB


@own_process(budget="60%", cuda_only="driver")
def test_a_share_is_of_the_devices_memory_and_chunks_are_by_the_budget():
    _, total = torch.cuda.mem_get_info()
    budget, chunk = (dtr_alloc.stats()[name] for name in ("budget_bytes", "chunk_bytes"))
    assert budget == pytest.approx(0.6 * total, rel=0.02)
    assert budget // 2048 < chunk <= budget // 1024 or chunk == 32 * MIB


@own_process(cuda_only="driver")
def test_a_jobs_own_memory_fraction_narrows_the_budget_and_evicts():
    _, total = torch.cuda.mem_get_info()
    base = torch.ones(8 * MIB, device=DEVICE)
    made = [base * index for index in range(12)]
    torch.cuda.set_per_process_memory_fraction(256 * MIB / total)
    assert dtr_alloc.stats()["budget_bytes"] <= 256 * MIB
    assert torch.cuda.get_per_process_memory_fraction() <= 256 * MIB / total
    assert torch.cuda.memory_allocated() <= 256 * MIB
    assert all(bool((tensor == index).all()) for index, tensor in enumerate(made))
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(128 * MIB, device=DEVICE)
    assert bool((torch.ones(MIB, device=DEVICE) == 1).all())


@own_process(cuda_only="cuDNN")
def test_cudnn_may_try_its_algorithms_out():
    torch.backends.cudnn.benchmark = True
    conv = torch.nn.Conv2d(16, 32, 3, padding=1).to(DEVICE)
    x = torch.randn(8, 16, 32, 32).to(DEVICE)
    dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 256 * MIB)
    assert conv(x).shape == (8, 32, 32, 32)
    conv(x).sum().backward()


@own_process(cuda_only="IPC")
def test_sharing_memory_with_other_processes_is_refused_in_words():
    made = torch.ones(MIB, device=DEVICE) * 2
    for share in (made.untyped_storage()._share_cuda_, made.share_memory_):
        with pytest.raises(RuntimeError, match="dtr_alloc"):
            share()
    assert bool((made == 2).all())


@own_process(cuda_only="streams of the interface")
def test_an_interface_of_raw_addresses_pins():
    made = torch.ones(MIB, device=DEVICE) * 2
    assert dtr_alloc.evict(made)
    assert made.__cuda_array_interface__["data"][0] != 0
    assert dtr_alloc.is_resident(made)
    assert not dtr_alloc.evict(made)


@own_process(cuda_only="event timing")
def test_costs_are_measured_without_waiting_for_the_device():
    x = torch.randn(1024, 1024).to(DEVICE)
    for _ in range(3):
        (x @ x).sum()
    before = dtr_alloc.stats()["host_waits"]
    busy()
    for _ in range(200):
        made = torch.tanh(x @ x)
    assert dtr_alloc.stats()["host_waits"] == before
    torch.cuda.synchronize()
    del made
