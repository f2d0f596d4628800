"""What writes to a tensor past all operators is noticed before anything is computed from it."""

import ctypes
import struct
from collections.abc import Callable
from tempfile import TemporaryFile

import numpy as np
import pytest
import torch
from harness import address, checked_session, evicted
from torch import Tensor

import dtr_alloc
from bench.models import JOBS
from dtr_alloc.core import StateError

COUNT = 1000


def write(tensor: Tensor, value: float, first: int = 0, count: int = COUNT) -> None:
    memory = (ctypes.c_float * count).from_address(address(tensor) + 4 * first)
    memory[:] = [value] * count


def by_file(tensor: Tensor) -> None:
    with TemporaryFile() as file:
        file.write(struct.pack(f"q{COUNT}f", COUNT, *[7.0] * COUNT))
        file.seek(0)
        tensor.untyped_storage()._set_from_file(file, 0, True, 4)


def without_dispatch(tensor: Tensor) -> None:
    with torch._C._DisableTorchDispatch():
        tensor.fill_(7)


WRITERS: dict[str, Callable[[Tensor], object]] = {
    "pointer": lambda tensor: write(tensor, 7),
    "storage": lambda tensor: tensor.untyped_storage().fill_(7),
    "byteswap": lambda tensor: tensor.untyped_storage().byteswap(torch.float32),
    "file": by_file,
    "data": lambda tensor: tensor.data.fill_(7),
    "no dispatch": without_dispatch,
}


def computed() -> Tensor:
    return torch.ones(COUNT) * 1


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("has_dependents", [True, False])
def test_what_a_result_holds_now_and_what_was_computed_from_it_keep_their_bits(
    writer, has_dependents
):
    with checked_session():
        buffer = computed()
        before = buffer * 2 if has_dependents else None
        WRITERS[writer](buffer)
        held = buffer.clone()
        if before is not None:
            after = buffer * 2
            for tensor in (before, after):
                evicted(tensor)
                dtr_alloc.materialize(tensor)
            assert (before == 2).all()
            assert torch.equal(after, held * 2)
            assert not torch.equal(after, before)
        # What was written cannot be computed again, so it stays.
        dtr_alloc.evict(buffer)
        assert torch.equal(buffer, held)


def test_a_session_ends_though_a_tensor_cannot_be_computed_again():
    dtr_alloc.enable("unlimited", device="cpu")
    constant = torch.tensor([1.0] * COUNT)
    good = evicted(torch.ones(COUNT) * 3)
    first = constant * 2
    between = first.view(10, 100) + 1
    second = between.exp()
    view = second[2:4]
    for tensor in (first, between, second):
        evicted(tensor)
    del between, tensor
    write(constant, 7)
    with pytest.raises(StateError) as caught:
        dtr_alloc.disable()
    for text in (
        "content of 2 storages of 7.81 KiB (8000 bytes) is unrecoverable",
        "3.91 KiB (4000 bytes) of aten::mul.Tensor, float32 (1000,)",
        "3.91 KiB (4000 bytes) of aten::exp.default, float32 (10, 100), float32 (2, 100)",
        "changed by something other than an operator",
    ):
        assert text in str(caught.value)
    assert not dtr_alloc.is_enabled()
    assert (good == 3).all()
    for tensor in (first, second, view):
        for read in READERS:
            with pytest.raises(RuntimeError, match="its content is lost"):
                read(tensor)
        assert tensor.shape


READERS: list[Callable[[Tensor], object]] = [
    repr,
    lambda tensor: tensor.clone(),
    lambda tensor: tensor.zero_(),
    lambda tensor: tensor.numpy(),
    lambda tensor: tensor.tolist(),
    lambda tensor: tensor.is_shared(),
    lambda tensor: tensor.data_ptr(),
    lambda tensor: torch._C.TensorBase.data_ptr(tensor),
    lambda tensor: bytes(tensor.untyped_storage()),
    lambda tensor: tensor.sum().item(),
]


def lost() -> Tensor:
    """A tensor of a session that has ended."""
    constant = torch.tensor([1.0] * COUNT)
    dtr_alloc.enable("unlimited", device="cpu")
    tensor = evicted(constant * 2)
    write(constant, 7)
    with pytest.raises(StateError, match="is unrecoverable"):
        dtr_alloc.disable()
    return tensor


def test_a_session_after_one_that_lost_a_tensor_works_and_ends():
    tensor = lost()
    with checked_session():
        for read in READERS:
            with pytest.raises(StateError, match="is lost: when a session ended"):
                read(tensor)
        assert not dtr_alloc.is_resident(tensor)
        assert not dtr_alloc.evict(tensor)
        good = evicted(torch.ones(COUNT) * 3)
        assert (good == 3).all()


def test_a_lost_tensor_can_be_given_other_memory():
    tensor = lost()
    tensor.data = torch.ones(3)
    assert tensor.tolist() == [1, 1, 1]


def by_numpy(rows: Tensor, first: int) -> None:
    rows.numpy()[first : first + 2] = 7


BY_OPERATOR: list[Callable[[Tensor, int], object]] = [
    lambda rows, first: rows[first : first + 2].mul_(7),
    lambda rows, first: rows[first : first + 2].copy_(torch.full((2, COUNT), 7.0)),
]


@pytest.mark.parametrize("writer", [by_numpy, *BY_OPERATOR])
def test_a_write_into_one_batch_leaves_what_another_batch_made(writer):
    rows = torch.from_numpy(np.ones((100, COUNT), dtype=np.float32))
    with checked_session():
        first, second, third = [rows[i : i + 2] * 2 for i in (0, 2, 98)]
        for tensor in (first, third):
            evicted(tensor)
        writer(rows, 2)
        again = rows[2:4] * 2
        assert not dtr_alloc.evict(second), "its batch is gone"
        for tensor in (first, third):
            assert not dtr_alloc.is_resident(tensor)
        for tensor in (first, third, again):
            dtr_alloc.materialize(tensor)
            evicted(tensor)
        assert (torch.cat([first, second, third]) == 2).all()
        assert (again == 14).all()


GIVERS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda tensor: tensor.detach().numpy(),
    "pointer": lambda tensor: tensor.data_ptr(),
    "dlpack": lambda tensor: np.from_dlpack(tensor.detach()),
}


def finds_a_small_write(tensor: Tensor) -> bool:
    """Whether a write to one number that the eight words miss is noticed."""
    result = evicted(tensor.detach() * 2)
    write(tensor, 7, first=17, count=1)
    try:
        dtr_alloc.materialize(result)
    except StateError:
        return True
    finally:
        write(tensor, 1)
        dtr_alloc.materialize(result)
    return False


def older() -> list[Tensor]:
    """Memory that PyTorch made before the session."""
    return [torch.ones(COUNT), torch.nn.Parameter(torch.ones(COUNT))]


@pytest.mark.parametrize("debug", ["off", "contents"])
def test_a_part_is_noticed_where_every_byte_is_compared(debug):
    """Memory that PyTorch made before the session is looked at like ours."""
    tensors = older()
    with checked_session("64MiB", debug):
        for tensor in (*tensors, torch.tensor([1.0] * COUNT)):
            assert finds_a_small_write(tensor) == (debug == "contents")


@pytest.mark.parametrize(
    ("giver", "before"), [*((giver, False) for giver in GIVERS), ("numpy", True)]
)
def test_where_others_hold_the_address_of_older_memory_every_byte_counts(giver, before):
    """Also where NumPy got it before the session."""
    tensors = older()
    held = [GIVERS[giver](tensor) for tensor in tensors if before]
    with checked_session():
        for tensor in tensors:
            given = held or GIVERS[giver](tensor)
            assert finds_a_small_write(tensor)
            assert finds_a_small_write(tensor)  # and also once nothing depends on it any more
            del given


@pytest.mark.parametrize("name", ["resnet", "lstm_module"])
def test_what_operators_write_in_training_is_no_unseen_write(name):
    """Running statistics, results in place of arguments, and a workspace that no schema names."""
    job = JOBS[name]()
    job.step(0)
    with checked_session(debug="contents"):
        for step in range(1, 4):
            job.step(step)
        assert dtr_alloc.stats()["unseen_writes"] == 0
