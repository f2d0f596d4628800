"""Every operator of PyTorch's own database gives the bits of plain PyTorch: when it runs, when its
results were evicted and computed again, under autocast, in backward, and with ``out=``."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import checked_session, evicted
from torch import Tensor
from torch.utils._pytree import tree_leaves

import dtr_alloc

pytest.importorskip("numpy", reason="PyTorch's samples need numpy")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    from bench.conformance.samples import (
        DTYPES,
        difference,
        dtypes_of,
        fresh,
        name_of,
        outcome,
        samples_of,
    )

SAMPLES = 2
TINY = 1024
"""Elements, more than a result may have that is not recorded."""
NO_CONTENT = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
}
"""Operators whose results are whatever was in memory."""
NEVER_THE_SAME = {"linalg.lstsq"}
"""Operators that give other bits from run to run, without us as well."""

pytestmark = pytest.mark.filterwarnings("ignore")


COMPARED = [op for op in op_db if op.name not in NO_CONTENT | NEVER_THE_SAME]
ONE_IN = 8


def each(operators: list[Any]) -> Any:
    """A parameter for each operator; most are long."""
    marks = [[] if index % ONE_IN == 0 else [pytest.mark.long] for index in range(len(operators))]
    found = [
        pytest.param(op, id=name_of(op), marks=mark)
        for op, mark in zip(operators, marks, strict=True)
    ]
    return pytest.mark.parametrize("op", found)


def forward_and_backward(op: Any, sample: Any, autocast: bool) -> list[Any]:
    """The results, the gradients, and where the generator stands afterwards."""
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        results = tree_leaves(op(sample.input, *sample.args, **sample.kwargs))
    roots = [
        part.abs().sum()
        for part in results
        if isinstance(part, Tensor) and part.requires_grad and part.layout == torch.strided
    ]
    leaves = [
        part
        for part in tree_leaves((sample.input, sample.args, sample.kwargs))
        if isinstance(part, Tensor) and part.requires_grad and part.is_leaf
    ]
    if roots and leaves:
        results += list(torch.autograd.grad(roots, leaves, allow_unused=True))
    return [*results, torch.get_rng_state()]


def assert_same(expected: Any, got: Any, where: object) -> None:
    if isinstance(expected, Exception) or isinstance(got, Exception):
        assert not (wrong := difference(expected, got)), f"{where}: {wrong}"
        return
    assert len(expected) == len(got)
    for index, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert not (wrong := difference(one, other)), f"{where}, result {index}: {wrong}"


def compare(
    where: str, run: Callable[..., Any], op: Any, sample: Any, *more: Any, given: Any = fresh
) -> None:
    """Fails unless a run gives the same in a session, and again once its results were evicted."""
    expected = outcome(run, op, fresh(sample), *more)
    where = f"{op.name}, {where}"
    with checked_session():
        got = outcome(run, op, given(sample), *more)
        assert_same(expected, got, where)
        for part in tree_leaves(got):
            if isinstance(part, Tensor) and part.layout == torch.strided:
                dtr_alloc.evict(part)
        assert_same(expected, got, f"{where}, computed again")
        got = None  # autograd's graph would hold its memory beyond the session


@each(COMPARED)
def test_an_operator_and_its_repetition_have_the_bits_of_plain_pytorch(op):
    for dtype in dtypes_of(op):
        for autocast in (False, True):
            for index, sample in enumerate(samples_of(op, dtype, True, SAMPLES)):
                where = f"{dtype}, autocast {autocast}, sample {index}"
                compare(where, forward_and_backward, op, sample, autocast)


def in_evicted_memory(sample: Any) -> Any:
    """The same sample, its contiguous tensors in memory that lost its content."""

    def move(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.layout != torch.strided or part.numel() == 0:
            return part
        if not part.is_contiguous():
            return part
        beyond = part.new_zeros(TINY)  # what is tiny is not recorded
        longer = torch.cat([part.detach().reshape(-1), beyond])
        return evicted(longer[: part.numel()].view(part.shape))

    return sample.transform(move)


@each([op for op in COMPARED if not op.name.startswith("as_strided")])  # sees what lies beyond
def test_arguments_that_were_evicted_are_brought_back(op):

    def run(op: Any, sample: Any) -> list[Any]:
        torch.manual_seed(1)
        return tree_leaves(op(sample.input, *sample.args, **sample.kwargs))

    with torch.no_grad():
        for dtype in dtypes_of(op):
            for index, sample in enumerate(samples_of(op, dtype, False, SAMPLES)):
                compare(f"{dtype}, sample {index}", run, op, sample, given=in_evicted_memory)


SHAPES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "none": lambda like, new: new(0),
    "fewer": lambda like, new: new(max(like.numel() - 1, 0)),
    "more": lambda like, new: new(like.numel() + 37),
    "another rank": lambda like, new: new(like.numel()).view(1, 1, -1),
    "a part of a larger buffer": lambda like, new: new(2 * like.numel() + 8)[
        3 : 3 + like.numel()
    ].view(like.shape),
    "the same": lambda like, new: new(like.numel()).view(like.shape),
}
"""Elements of the tensors that are given as ``out``, compared with what the operator gives."""

WITH_OUT = [op for op in COMPARED if op.supports_out]


def write_out(op: Any, sample: Any, like: list[Tensor], shape: str) -> list[Any]:
    """What an operator makes of tensors given as ``out``, and of all of the memory behind them."""
    torch.manual_seed(1)
    given = [
        SHAPES[shape](of, lambda count, of=of: torch.arange(count).to(of.dtype)) for of in like
    ]
    out = given[0] if len(given) == 1 else tuple(given)
    op(sample.input, *sample.args, **sample.kwargs, out=out)
    whole = [torch.empty(0, dtype=of.dtype).set_(of.untyped_storage()) for of in given]
    return given + (whole if shape != "none" else [])


@each(WITH_OUT)
def test_out_of_any_shape_has_the_bits_of_plain_pytorch(op):
    with torch.no_grad():
        for dtype in (dtype for dtype in dtypes_of(op) if dtype in DTYPES):
            sample = samples_of(op, dtype, False, SAMPLES)[0]
            given = outcome(op, sample.input, *sample.args, **sample.kwargs)
            like = [given] if isinstance(given, Tensor) else given
            if not (isinstance(like, list | tuple) and all(isinstance(x, Tensor) for x in like)):
                continue
            for shape in SHAPES:
                where = f"{dtype}, out has {shape}"
                compare(where, write_out, op, sample, list(like), shape)


def test_a_result_in_a_resized_buffer_can_be_evicted():
    with checked_session():
        a, b = torch.arange(1000.0), torch.arange(1000.0)
        for given in (0, 999, 1037):
            out = torch.zeros(given)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.add(a, b, out=out)
            assert dtr_alloc.evict(out), f"out had {given} elements"
            assert torch.equal(out, torch.arange(1000.0) * 2)
