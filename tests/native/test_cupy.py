"""CuPy on the process's pools, over the stand-in for libcuda: needs the native build and g++.

CuPy's part is played by a stand-in for the few calls that dtr_alloc.cupy makes, and, where CuPy is
installed, by CuPy itself with a stand-in for what needs a device: its current device and stream.
"""

import gc
import os
import sys
import types
import weakref

import pytest
from commands import python
from cupy_stand_in import Situation, Stream, stand_in
from native_pool import IN_USE, MIB, NativePool, ffi, lib
from toy import Toy

from dtr_alloc import cupy as ours
from dtr_alloc import pools
from dtr_alloc.config import Budget, Config, ConfigError
from dtr_alloc.core import StateError
from dtr_alloc.fragment import formats, report
from dtr_alloc.traces import recording
from dtr_alloc.traces.trace import Kind

A, B = 16, 32


@pytest.fixture
def situation():
    return Situation()


@pytest.fixture(params=["stand-in", "CuPy"])
def cupy(request, fake_cuda, situation, monkeypatch):
    """The module that `import cupy` gives, in a process without pools."""
    if request.param == "CuPy":
        module = pytest.importorskip("cupy", reason="CuPy is not installed here")
    else:
        module = stand_in()
        monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(module.cuda, "get_device_id", lambda: situation.device, raising=False)
    monkeypatch.setattr(module.cuda, "get_current_stream", lambda: situation.stream, raising=False)
    monkeypatch.setattr(ours, "_streams", {})
    monkeypatch.setattr(pools, "_pools", None)  # other tests of this process may have made some
    monkeypatch.setattr(module, "get_default_memory_pool", lambda: situation, raising=False)
    for name in [name for name in os.environ if name.startswith("DTR_ALLOC_")]:
        monkeypatch.delenv(name)
    yield module
    if ours.is_enabled():
        ours.disable()
    fake_cuda.hold(0)
    gc.collect()
    made = pools.existing()
    if made is not None:
        made.check_invariants()
        pools._pools = None
        for handle in made.handles:
            assert lib.dtr_pool_destroy(handle) == lib.DTR_OK


def pool(index=0):
    """The process's pool of a device, with the methods of the tests' pools."""
    wrapped = NativePool.__new__(NativePool)
    wrapped.handle, wrapped._room = pools.existing().handles[index], ffi.NULL
    return wrapped


def in_use(index=0):
    return {b.address: b.stream for b in pool(index).snapshot() if b.state == IN_USE}


def test_memory_comes_from_the_heap_and_goes_back_with_the_last_array_over_it(cupy):
    ours.enable("8MiB")
    pointer = cupy.cuda.alloc(1000)
    assert in_use() == {pointer.ptr: 0}
    assert pools.existing().budget_bytes() == [8 * MIB]
    assert (pointer.mem.size, pointer.mem.device_id) == (1000, 0)
    view = pointer + 512
    del pointer
    assert len(in_use()) == 1
    del view
    assert in_use() == {}


def test_a_trace_has_its_blocks_with_their_streams_and_what_found_no_place(
    cupy, situation, monkeypatch, tmp_path
):
    monkeypatch.setenv("DTR_ALLOC_TRACE", str(tmp_path / "job.trace"))
    ours.enable("8MiB")
    try:
        first = cupy.cuda.alloc(1000)
        situation.stream = Stream(A)
        second = cupy.cuda.alloc(6 * MIB)
        places = [first.ptr, second.ptr]
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.cuda.alloc(7 * MIB)
        del second, first
    finally:
        recording.stop()
    trace = formats.read(tmp_path / "job.trace")
    columns = (trace.kind, trace.address, trace.size_bytes, trace.stream)
    rows = list(zip(*columns, strict=True))
    assert [row[1:] for row in rows if row[0] == Kind.ALLOCATE] == [
        (places[0], 1000, 0),
        (places[1], 6 * MIB, A),
    ]
    assert [row[1] for row in rows if row[0] == Kind.FREE] == places[::-1]
    failed = [row[2] for row in rows if row[0] == Kind.OUT_OF_MEMORY]
    assert set(failed) == {7 * MIB}
    (found,) = report.reports("job", trace)
    assert found.rows[0].measures.budget_bytes == 8 * MIB
    assert found.rows[0].measures.peak_live_bytes == 6 * MIB + 1000


def test_what_cupys_own_pool_keeps_goes_back_to_the_device(cupy, situation):
    ours.enable("8MiB")
    assert situation.gave_back == 1


def test_nothing_takes_no_memory(cupy, situation):
    situation.device = 0
    ours.enable("8MiB")
    pointer = cupy.cuda.alloc(0)
    assert (pointer.ptr, pointer.mem.device_id) == (0, 0)
    assert in_use() == {}


def test_both_numbers_of_the_default_stream_are_one_stream(cupy, situation):
    ours.enable("8MiB")
    situation.stream = Stream(1)
    pointer = cupy.cuda.alloc(64)
    assert in_use() == {pointer.ptr: 0}


def test_a_stream_is_kept_so_that_its_number_is_not_given_to_another(cupy, situation):
    ours.enable("8MiB")
    situation.stream = Stream(A)
    stream = weakref.ref(situation.stream)
    cupy.cuda.alloc(64)
    situation.stream = Stream(0)
    gc.collect()
    assert stream() is not None


@pytest.mark.parametrize(
    ("stream", "message"),
    [(Stream(2), "per-thread default stream"), (Stream(A, capturing=True), "captures a graph")],
)
def test_streams_that_the_heap_cannot_serve_are_errors(cupy, situation, stream, message):
    ours.enable("8MiB")
    situation.stream = stream
    with pytest.raises(StateError, match=message):
        cupy.cuda.alloc(64)
    assert in_use() == {}


def test_each_device_has_its_own_heap_and_budget(cupy, situation, fake_cuda):
    fake_cuda.set_devices(2)
    ours.enable("4MiB")
    held = [cupy.cuda.alloc(3 * MIB)]
    situation.device = 1
    held += [cupy.cuda.alloc(3 * MIB)]
    assert held[1].mem.device_id == 1
    assert [list(in_use(i)) for i in (0, 1)] == [[held[0].ptr], [held[1].ptr]]


def test_a_device_without_a_heap_is_an_error_that_says_so(cupy, situation):
    ours.enable("8MiB")
    situation.device = 3
    with pytest.raises(StateError, match=r"device 3 has no heap: dtr_alloc found 1 device"):
        cupy.cuda.alloc(64)


def test_out_of_memory_is_cupys_own_error_with_our_message(cupy):
    ours.enable("8MiB")
    held = cupy.cuda.alloc(6 * MIB)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
        cupy.cuda.alloc(6 * MIB)
    assert "dtr_alloc: out of memory: requested 6.0 MiB" in str(caught.value)
    assert "budget 8.0 MiB" in str(caught.value)
    assert list(in_use()) == [held.ptr]


def test_arrays_in_reference_cycles_are_memory_too(cupy):
    ours.enable("8MiB")
    cycle = [cupy.cuda.alloc(6 * MIB)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert cupy.cuda.alloc(6 * MIB).ptr
    finally:
        gc.enable()


def test_an_allocation_that_does_not_fit_evicts_what_can_be_computed_again(cupy):
    """The engine's room callback runs on the thread that allocates, which has the GIL released."""
    ours.enable("8MiB")
    toy = Toy(pool(), device=(1, 0), grain=512)
    start = toy.unseen(128)
    results = [toy.one("make", start, words=MIB // 8, parameter=i) for i in range(6)]
    pointer = cupy.cuda.alloc(5 * MIB)
    evicted = [tensor for tensor in results if tensor.evicted]
    assert len(evicted) >= 3
    assert pointer.ptr in in_use()
    for tensor in [*results, start]:
        tensor.release()
    toy.close()


def test_cupy_gets_its_allocator_back_and_what_it_has_stays(cupy):
    before = cupy.cuda.get_allocator()
    ours.enable("8MiB")
    held = cupy.cuda.alloc(100)
    ours.disable()
    assert cupy.cuda.get_allocator() == before
    assert pools.existing().budget_bytes() == [2**64 - 1]
    assert list(in_use()) == [held.ptr]
    del held
    assert in_use() == {}


def test_it_is_enabled_once(cupy):
    with pytest.raises(StateError, match="is not enabled"):
        ours.disable()
    ours.enable("8MiB")
    with pytest.raises(StateError, match="is enabled already"):
        ours.enable("8MiB")
    ours.disable()
    ours.enable("4MiB")
    assert pools.existing().budget_bytes() == [4 * MIB]


def test_a_budget_that_what_exists_does_not_fit_changes_nothing(cupy):
    before = cupy.cuda.get_allocator()
    ours.enable("8MiB")
    held = cupy.cuda.alloc(6 * MIB)
    ours.disable()
    # RuntimeError: torch's error, in a process that has imported torch.
    with pytest.raises((MemoryError, RuntimeError), match="budget"):
        ours.enable("4MiB")
    assert not ours.is_enabled()
    assert cupy.cuda.get_allocator() == before
    assert pools.existing().budget_bytes() == [2**64 - 1]
    del held


def test_a_budget_is_needed_and_comes_from_the_environment_too(cupy, monkeypatch):
    with pytest.raises(ConfigError, match="DTR_ALLOC_BUDGET"):
        ours.enable()
    assert pools.existing() is None
    monkeypatch.setenv("DTR_ALLOC_BUDGET", "25%")
    ours.enable()
    assert pools.existing().budget_bytes() == [2**28]


def test_the_heaps_counters_and_its_free_memory_are_at_hand_without_torch(cupy):
    with pytest.raises(StateError, match="was not enabled"):
        ours.stats()
    ours.enable("64MiB")
    held = cupy.cuda.alloc(5 * MIB)
    assert ours.stats()["allocated_bytes"] == 5 * MIB
    del held
    assert ours.trim() == 6 * MIB
    assert ours.stats()["peak_allocated_bytes"] == 5 * MIB


def test_the_cpu_has_no_memory_for_cupy(cupy, monkeypatch):
    monkeypatch.setenv("DTR_ALLOC_DEVICE", "cpu")
    with pytest.raises(ConfigError, match="DTR_ALLOC_DEVICE is 'cpu'; allowed: cuda"):
        ours.enable("8MiB")
    assert pools.existing() is None


class TestBesideTorch:
    """What dtr_alloc.enable() has set holds for CuPy, too."""

    @pytest.fixture
    def runtime(self, monkeypatch):
        runtime = types.SimpleNamespace(is_enabled=lambda: True)
        monkeypatch.setitem(sys.modules, "dtr_alloc.torch.api", runtime)
        return runtime

    @pytest.fixture
    def shared(self, cupy, runtime):
        shared = pools.of_process("cuda", Config())
        shared.set_budget(Budget(8 * MIB))
        return shared

    def test_it_joins_the_budget_that_is_in_force(self, cupy, shared, monkeypatch):
        monkeypatch.setenv("DTR_ALLOC_BUDGET", "2MiB")  # that of enable() wins
        ours.enable()
        assert pools.existing() is shared
        assert shared.budget_bytes() == [8 * MIB]
        ours.disable()
        assert shared.budget_bytes() == [8 * MIB]

    def test_there_is_one_budget(self, cupy, shared):
        with pytest.raises(StateError, match=r"call dtr_alloc\.set_budget"):
            ours.enable("4MiB")
        ours.enable("8MiB")

    def test_a_budget_of_the_cpu_is_not_for_cupy(self, cupy, shared, runtime):
        shared.device_type = "cpu"
        with pytest.raises(StateError, match="'cpu', and cannot change to 'cuda'"):
            ours.enable()


def test_without_cupy_it_says_so():
    code = "import sys; sys.modules['cupy'] = None; import dtr_alloc.cupy as c; c.enable('1GiB')"
    result = python("-c", code, status=1)
    assert "ModuleNotFoundError" in result.stderr
    assert "import of cupy halted" in result.stderr
