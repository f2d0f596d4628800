"""Whatever reads a tensor's memory behind the dispatcher's back sees the right values."""

import copy
import ctypes
import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import checked_session, evicted, is_true_in_a_fork, python
from torch import Tensor, nn
from torch.utils import dlpack

import dtr_alloc
from dtr_alloc import pools
from dtr_alloc.config import Config
from dtr_alloc.core import check, ffi, lib

Evict = Callable[[Tensor], Tensor]
Base, StorageBase = torch._C.TensorBase, torch._C.StorageBase
SHAPE = (6, 8)


def source() -> Tensor:
    """A constant of shape (6, 8) whose multiples are not round numbers."""
    return torch.arange(48, dtype=torch.float32).reshape(SHAPE) / 7


def view_made_before(evict: Evict) -> Tensor:
    base = source() * 2 + 1
    part = base[:, 2:6]
    evict(base)
    return part


def aliased(evict: Evict) -> Tensor:
    """Two tensors on one storage; evicting one evicts both."""
    first = source() * 2 + 1
    second = first.detach()
    evict(first)
    return second


def needs_old_version(evict: Evict) -> Tensor:
    """Evicted, and computed from a version that has been overwritten in place since."""
    y = source() * 2
    z = evict(y.exp() + y)
    y.add_(5)
    evict(y)
    return z


def mutated_through_view(evict: Evict) -> Tensor:
    y = source() * 2
    y[2:4].neg_()
    y.t()[0] = 9.0
    return evict(y)


def random(evict: Evict) -> Tensor:
    torch.manual_seed(3)
    return evict(nn.functional.dropout(source(), 0.5) + torch.rand(SHAPE))


def saved_for_backward(evict: Evict) -> Tensor:
    """A gradient that went through an evicted saved tensor."""
    x = source().requires_grad_()
    y = x.tanh()
    evict(y)
    (y * y).sum().backward()
    assert x.grad is not None
    return x.grad


TENSORS: dict[str, Callable[[Evict], Tensor]] = {
    "plain": lambda evict: evict(source() * 2 + 1),
    # Strided, of a base that has no content and no other name.
    "view": lambda evict: evict(source() * 2 + 1)[1:, ::2].t(),
    # The second version of a storage whose first version is gone.
    "mutated": lambda evict: evict((y := source() * 2).add_(5).mul_(y)),
    # Computed from intermediates that nothing refers to any more.
    "ghost": lambda evict: evict(((x := source()).sin() * 2 + x.cos()).tanh()),
    # One of two outputs of an operator, the other of which is dead.
    "output of many": lambda evict: evict((source() * -1).sort(dim=1)[0]),
    **{
        make.__name__: make
        for make in (
            *(view_made_before, aliased, needs_old_version, mutated_through_view),
            *(random, saved_for_backward),
        )
    },
}


def read_pointer(address: int, like: Tensor) -> np.ndarray:
    """The floats at an address, laid out as `like`."""
    span = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (span,))
    strides = [4 * s for s in like.stride()]
    return np.lib.stride_tricks.as_strided(flat, like.shape, strides).copy()


def through_storage_pointer(t: Tensor, owner: Any = torch.UntypedStorage) -> np.ndarray:
    return read_pointer(owner.data_ptr(t.untyped_storage()) + 4 * t.storage_offset(), t)


def through_share_memory(t: Tensor) -> np.ndarray:
    t.share_memory_()
    assert t.is_shared()
    return t.numpy().copy()


# Each of these hands out an address, after which the storage must stay where it is.
POINTERS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy().copy(),
    "asarray": lambda t: np.asarray(t).copy(),
    "data_ptr": lambda t: read_pointer(t.data_ptr(), t),
    "const_data_ptr": lambda t: read_pointer(t.const_data_ptr(), t),
    "base data_ptr": lambda t: read_pointer(Base.data_ptr(t), t),
    "base const_data_ptr": lambda t: read_pointer(Base.const_data_ptr(t), t),
    "base numpy": lambda t: Base.numpy(t).copy(),
    "storage data_ptr": through_storage_pointer,
    "storage base data_ptr": lambda t: through_storage_pointer(t, StorageBase),
    "torch.from_dlpack": lambda t: torch.from_dlpack(t).clone().numpy(),
    "np.from_dlpack": lambda t: np.from_dlpack(t).copy(),  # type: ignore[arg-type]
    "to_dlpack": lambda t: dlpack.from_dlpack(dlpack.to_dlpack(t)).clone().numpy(),
    "share_memory_": through_share_memory,
}
if not hasattr(Base, "const_data_ptr"):  # before torch 2.13
    del POINTERS["const_data_ptr"], POINTERS["base const_data_ptr"]


def through_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_state_dict(t: Tensor) -> np.ndarray:
    module = nn.Module()
    module.register_buffer("t", t)
    return through_file(module.state_dict())["t"].numpy()


def through_set(t: Tensor) -> np.ndarray:
    """A new tensor put on the old storage."""
    other = torch.empty(0)
    other.set_(t.untyped_storage(), t.storage_offset(), t.shape, t.stride())
    return other.clone().numpy()


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: [t[i, j].item() for i in range(len(t)) for j in range(t.shape[1])],
    "float and bool": lambda t: (float(t[1, 1]), bool((t > 1).any()), int(t[0, 1])),
    "iteration": lambda t: [float(x) for row in t for x in row],
    "format": lambda t: f"{t[1, 1]:.5f} {t[0, 0].item()}",
    "repr": repr,
    "str of data": lambda t: str(t.data),
    "torch.save": lambda t: through_file(t).numpy(),
    "state_dict": through_state_dict,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).numpy(),
    "deepcopy": lambda t: copy.deepcopy(t).numpy(),
    "copy": lambda t: copy.copy(t).clone().numpy(),
    "storage bytes": lambda t: bytes(t.untyped_storage()),
    "storage index": lambda t: [t.untyped_storage()[i] for i in range(16)],
    "deepcopy of storage": lambda t: copy.deepcopy(t.untyped_storage()).tolist(),
    "set_": through_set,
    "torch.tensor": lambda t: torch.tensor(t.tolist()).numpy(),
    "out of place op": lambda t: (t + t.t().t()).numpy(),
}


def keep(tensor: Tensor) -> Tensor:
    """The eviction that does not happen, for the reference."""
    return tensor


@pytest.mark.parametrize("read", [*POINTERS, *READS])
@pytest.mark.parametrize("of", TENSORS)
def test_reading_an_evicted_tensor_gives_its_values(of, read):
    escape = (POINTERS | READS)[read]
    expected = escape(TENSORS[of](keep).detach())
    with checked_session():
        tensor = TENSORS[of](evicted).detach()
        got = escape(tensor)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(escape(tensor), expected)
        if read in POINTERS:  # a storage whose address is known stays
            assert dtr_alloc.is_resident(tensor)
            assert not dtr_alloc.evict(tensor)
            assert not dtr_alloc.evict(tensor.view_as(tensor))


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.apply_(lambda x: x + 5),
        lambda t: t.map_(source(), lambda x, y: x + y),
        lambda t: t.map2_(source(), source(), lambda x, y, z: x + y * z),
        lambda t: StorageBase.__setitem__(t.untyped_storage(), 3, 66),
        lambda t: StorageBase.copy_(t.untyped_storage(), source().untyped_storage()),
        lambda t: t.untyped_storage().fill_(0),
        lambda t: [t.untyped_storage().__setitem__(i, 0) for i in range(4)],
    ],
    ids=["apply_", "map_", "map2_", "base __setitem__", "copy_", "fill_", "__setitem__"],
)
def test_what_writes_past_the_dispatcher_leaves_what_was_computed_before(write):
    expected = source() * 2
    write(expected)
    with checked_session():
        tensor = source() * 2
        derived = evicted(tensor + 1)
        evicted(tensor)
        write(tensor)
        assert torch.equal(derived, source() * 2 + 1)
        dtr_alloc.evict(tensor)
        assert torch.equal(tensor, expected)


def test_a_parameter_is_swapped_and_read_until_its_address_is_given_away():
    with checked_session(swap="64MiB"):
        weight = nn.Parameter(torch.arange(4096.0))
        assert evicted(weight).tolist()[4095] == 4095
        assert evicted(weight).detach().numpy()[4095] == 4095
        assert not dtr_alloc.evict(weight)


def test_resizing_an_evicted_storage_keeps_what_it_can():
    with checked_session():
        tensor = evicted(source() * 2)
        tensor.resize_(12, 8)
        assert torch.equal(tensor[:6], source() * 2)
        other = evicted(source() * 2)
        other.untyped_storage().resize_(2 * other.untyped_storage().nbytes())
        assert torch.equal(other, source() * 2)


def test_assigning_data_to_an_evicted_tensor_and_from_one():
    with checked_session():
        first, second = evicted(source() * 2), evicted(source() * 3)
        first.data = second
        assert torch.equal(first, source() * 3)
        third = evicted(source() * 5)
        torch.utils.swap_tensors(first, third)
        assert torch.equal(first, source() * 5)
        assert torch.equal(third, source() * 3)
        assert torch.equal(second, source() * 3)


@pytest.mark.skipif(
    not hasattr(torch._C.StorageBase, "_swap_data_ptr_"), reason="new in PyTorch 2.12"
)
def test_two_storages_that_exchange_their_memory():
    with checked_session():
        first, second = source() * 2, source() * 3
        of_first, of_second = evicted(first + 1), second + 1
        evicted(first)
        first.untyped_storage()._swap_data_ptr_(second.untyped_storage())
        dtr_alloc.check_invariants()
        later = first + second
        assert torch.equal(first, source() * 3)
        assert torch.equal(second, source() * 2)
        assert torch.equal(of_first, source() * 2 + 1)
        dtr_alloc.evict(of_second)
        assert torch.equal(of_second, source() * 3 + 1)
        assert torch.equal(evicted(later), source() * 3 + source() * 2)
        empty = torch.UntypedStorage(0)
        empty._swap_data_ptr_(first.untyped_storage())
        dtr_alloc.check_invariants()
        del first
        assert torch.equal(source().set_(empty, 0, source().shape), source() * 3)


def test_memory_of_the_heap_that_torch_did_not_take_is_memory_of_others():
    """As an array of CuPy's is, seen through DLPack: its address is in our heap, its owner is not
    torch. It is never evicted or freed by us, and what is computed from it can be evicted."""
    with checked_session():
        pool = pools.of_process("cpu", Config()).handles[0]
        out = ffi.new("void **")
        check(lib.dtr_pool_allocate(pool, 4096, 0, out))
        array = np.frombuffer(ffi.buffer(out[0], 4096), np.float32)
        array[...] = 3
        tensor = torch.from_dlpack(array)
        assert tensor.data_ptr() == int(ffi.cast("uintptr_t", out[0]))
        derived = evicted(tensor * 2)
        assert not dtr_alloc.evict(tensor)
        assert torch.equal(derived, torch.full((1024,), 6.0))
        tensor.add_(1)
        assert array[0] == 4
        del tensor, derived
        assert lib.dtr_pool_block_bytes(pool, out[0]) == 4096
        assert array[5] == 4
        check(lib.dtr_pool_free(pool, out[0]))


def test_memory_that_onednn_took_goes_back_to_whoever_gave_it():
    """It has no deleter: oneDNN gives it to the allocator of the day, inside a session or not."""
    values = torch.ones(64, 64)
    before = values.to_mkldnn()
    with checked_session():
        blocks = dtr_alloc.stats()["live_blocks"]
        inside = [values.to_mkldnn() for _ in range(2)]
        assert dtr_alloc.stats()["live_blocks"] > blocks
        del before
    assert torch.equal(inside.pop().to_dense(), values)
    between = values.to_mkldnn()
    with checked_session():
        inside.clear()
        assert dtr_alloc.stats()["live_blocks"] == blocks
        del between


@pytest.mark.parametrize(
    "share",
    [lambda t: torch.from_dlpack(t), lambda t: dlpack.to_dlpack(t)],
    ids=["from_dlpack", "to_dlpack"],
)
def test_where_writes_go_unnoticed_what_depends_on_shared_memory_is_computed_first(
    share, monkeypatch
):
    """As on CUDA, where no checksum tells that others wrote: played on the CPU."""
    with checked_session():
        monkeypatch.setattr(dtr_alloc.torch.api.active(), "notices_writes", False)
        shared = source() * 2
        derived, later = evicted(shared + 1), evicted((shared * 3).exp())
        shared_with = share(shared)
        assert dtr_alloc.is_resident(derived)
        assert dtr_alloc.is_resident(later)
        np.asarray(shared.numpy())[...] = 7
        assert torch.equal(derived, source() * 2 + 1)
        assert torch.equal(later, (source() * 2 * 3).exp())
        del shared_with


def test_sharing_inside_an_operator_leaves_its_inputs_to_its_schema(monkeypatch):
    """A custom operator may hand its arguments to a kernel of another library's."""
    with checked_session():
        monkeypatch.setattr(dtr_alloc.torch.api.active(), "notices_writes", False)

        @torch.library.custom_op("dtr_test::twice_by_dlpack", mutates_args=())
        def twice(tensor: Tensor) -> Tensor:
            return torch.from_numpy(np.from_dlpack(tensor.detach()) * 2)

        start = source() + 1
        assert torch.equal(twice(start), (source() + 1) * 2)
        assert not dtr_alloc.evict(start)


def test_the_way_around_dlpack_is_closed_while_enabled():
    """Libraries that find this table take addresses from it, and never call __dlpack__()."""
    name = "__dlpack_c_exchange_api__"
    before = getattr(Tensor, name, None)
    with checked_session():
        assert not hasattr(Tensor, name)
        assert not hasattr(nn.Parameter, name)
    assert getattr(Tensor, name, None) is before


@pytest.mark.skipif(
    not hasattr(torch.overrides, "redispatch_function"), reason="this torch has none"
)
def test_a_subclass_hands_its_calls_on():
    """redispatch_function() skips one call of ``__torch_function__``: ours must not be that one."""

    class HandsOn(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return torch.overrides.redispatch_function(func, types, args, kwargs)

    with checked_session():
        tensor = (torch.ones(1000) * 2).as_subclass(HandsOn)
        evicted(tensor)
        assert tensor.tolist() == [2.0] * 1000
        evicted(tensor)
        assert (tensor.numpy() == 2).all()
        assert tensor.data_ptr() == tensor.untyped_storage().data_ptr()
        dtr_alloc.evict(tensor)
        assert dtr_alloc.is_resident(tensor)


# ---- the types that are built in ----


def members() -> list[dict[str, Any]]:
    return [dict(vars(base)) for base in (Base, StorageBase)]


def test_a_lookup_that_python_remembers_meets_the_guard_and_then_the_method():
    """The interpreter writes what it has found into the code that looks it up."""

    def ask(tensor: Tensor) -> int:
        assert Base.data_ptr(tensor) == tensor.data_ptr()
        return tensor.data_ptr()

    for _ in range(100):
        ask(source())
    with checked_session():
        tensor = evicted(source() * 2)
        for _ in range(100):
            ask(tensor)
        assert not dtr_alloc.evict(tensor)
    assert ask(tensor) == tensor.untyped_storage().data_ptr()
    assert type(Base.data_ptr) is type(Base.add)


def test_after_the_session_and_in_a_child_the_types_are_as_they_were():
    before = members()
    with checked_session():
        assert members() != before
    assert members() == before
    assert is_true_in_a_fork(lambda: members() == before)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_guards_whose_placing_or_removal_is_interrupted_are_all_removed(done, monkeypatch):
    before = members()
    with checked_session():
        pass
    bridge = dtr_alloc.torch.api._runtime.bridge
    set_member, calls, interrupted_at = bridge.set_member, 0, 0

    def interrupted(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if done:
            set_member(*args)
        if calls == interrupted_at:
            raise KeyboardInterrupt
        if not done:
            set_member(*args)

    monkeypatch.setattr(bridge, "set_member", interrupted)
    while calls >= interrupted_at:
        calls, interrupted_at = 0, interrupted_at + 1
        with suppress(KeyboardInterrupt), checked_session():
            pass
        assert members() == before
        assert not dtr_alloc.is_enabled()
    assert calls > 30


NOT_COMPARED = {
    *("data_ptr", "const_data_ptr", "_data_ptr", "_cdata", "_weak_ref", "__hash__"),  # addresses
    *("__reduce__", "__reduce_ex__", "_share_fd_cpu_", "_share_filename_cpu_"),  # names of files
    *("new", "new_empty", "__new__"),  # memory that nobody has written to
    *("__dir__", "__dlpack_c_exchange_api__"),  # which see above
}


@cache
def walk(state: str) -> dict[str, str]:
    """What each call of attribute_walk.py gives. A process that one ends is followed by another."""
    outcomes: dict[str, str] = {}
    while True:
        walker = Path(__file__).with_name("attribute_walk.py")
        done = python(walker, state, len(outcomes), status=None)
        told = done.stdout.splitlines()
        outcomes.update(zip(told[::2], told[1::2], strict=False))
        if done.returncode == 0:
            return outcomes
        assert len(told) % 2, f"ended between two calls:\n{done.stderr[-3000:]}"
        outcomes[told[-1]] = f"ends the process with status {done.returncode}"


@pytest.mark.parametrize("state", ["evicted", "lost"])
def test_no_attribute_of_a_tensor_without_content_ends_the_process(state):
    """Of a tensor, its storage, and the types of C++ that these come from."""
    outcomes = walk(state)
    assert len(outcomes) > 6000
    assert {name: text for name, text in outcomes.items() if text.startswith("ends")} == {}


def test_every_attribute_of_an_evicted_tensor_gives_what_it_gives_without_us():
    expected, outcomes = walk("plain"), walk("evicted")
    compared = 0
    for name, text in expected.items():
        attribute = name.partition(".")[2].partition("(")[0]
        if attribute not in NOT_COMPARED:
            assert outcomes[name] == text, name
            compared += 1
    assert compared > 6000
