"""Calls what tensors and storages have, one by one, in a process that one of them may end.

Run as ``python attribute_walk.py STATE FIRST``. STATE says of what content the tensors are:
``plain``, ``evicted``, or ``lost`` (evicted when a session ended that could not bring it back). For
each call, from the FIRST one on, two lines are written: its name, before it, and its outcome.
"""

import ctypes
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

import dtr_alloc

OWNERS: dict[str, tuple[Any, Callable[[Tensor], Any]]] = {
    "Tensor": (Tensor, lambda t: t),
    "TensorBase": (torch._C.TensorBase, lambda t: t),
    "UntypedStorage": (UntypedStorage, Tensor.untyped_storage),
    "StorageBase": (torch._C.StorageBase, Tensor.untyped_storage),
    "TypedStorage": (TypedStorage, lambda t: t.storage()),
}
WITHOUT = ("__delitem__", "_set_cdata", "_set_from_file", "_write_file")
"""With these arguments they end any process that uses PyTorch."""

ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "": lambda subject: (),
    "0": lambda subject: (0,),
    "1": lambda subject: (1,),
    "itself": lambda subject: (subject,),
}


def calls() -> Iterator[tuple[str, Callable[[Tensor], Any]]]:
    """Names, and what they do to a tensor. Calls go by the class, as ``owner.name(subject)``."""
    for owner_name, (owner, subject_of) in OWNERS.items():
        for name in sorted(set(dir(owner)) - set(WITHOUT)):
            attribute = getattr(owner, name)
            if not callable(attribute):

                def read(tensor: Tensor, name: str = name, of: Any = subject_of) -> Any:
                    return getattr(of(tensor), name)

                yield f"{owner_name}.{name}", read
                continue
            for text, arguments in ARGUMENTS.items():

                def call(
                    tensor: Tensor, f: Any = attribute, of: Any = subject_of, more: Any = arguments
                ) -> Any:
                    subject = of(tensor)
                    return f(subject, *more(subject))

                yield f"{owner_name}.{name}({text})", call


def text_of(value: Any) -> str:
    """What two processes can compare, in one line."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            return f"{value.layout} {value.device} {value.dtype} {tuple(value.shape)}"
        return f"{value.dtype} {tuple(value.shape)} {value.detach().flatten().tolist()}"
    if isinstance(value, TypedStorage):
        value = value._untyped_storage
    if isinstance(value, UntypedStorage):
        return f"{value.device} {value.tolist() if value.device.type == 'cpu' else value.nbytes()}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {[text_of(part) for part in value]}"
    if isinstance(value, dict):
        return f"dict of {[(text_of(key), text_of(part)) for key, part in value.items()]}"
    if isinstance(value, str):
        return repr(re.sub("0x[0-9a-f]+", "an address", value))
    if isinstance(value, bool | int | float | complex | bytes | torch.dtype | torch.device):
        return repr(value)
    return type(value).__name__


def outcome(call: Callable[[Tensor], Any], tensor: Tensor) -> str:
    """What a call gives and leaves behind."""
    torch.manual_seed(0)
    try:
        told = text_of(call(tensor))
    except Exception as error:
        told = f"raises {type(error).__name__}"
    try:
        if tensor.untyped_storage().nbytes() < 192:
            return f"{told}; then nothing"  # reading it would read past its storage's end
        return f"{told}; then {text_of(tensor)}"
    except Exception as error:
        return f"{told}; then raises {type(error).__name__}"


def made() -> Tensor:
    return torch.arange(48, dtype=torch.float32).reshape(6, 8) / 7 * 2 + 1


def evicted() -> Tensor:
    tensor = made()
    assert dtr_alloc.evict(tensor)
    return tensor


def lost(count: int) -> list[Tensor]:
    """Of a session that has ended."""
    constant = torch.tensor([1.0] * 48)
    address = constant.data_ptr()
    dtr_alloc.enable("unlimited", device="cpu")
    tensors = [(constant * 2).reshape(6, 8) for _ in range(count)]
    for tensor in tensors:
        assert dtr_alloc.evict(tensor)
    (ctypes.c_float * 48).from_address(address)[:] = [7.0] * 48  # nobody hears of it
    try:
        dtr_alloc.disable()
    except dtr_alloc.StateError:
        return tensors
    raise AssertionError("nothing was lost")


def main(state: str, first: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    make = made if state == "plain" else evicted
    if state == "evicted":
        dtr_alloc.enable("unlimited", device="cpu")
    elif state == "lost":
        # And some more: CPython 3.14 gives types attributes when they are asked for.
        make = lost(len(list(calls())) - first + 64).pop
    # Only now: a method that was taken before is not guarded.
    for name, call in list(calls())[first:]:
        tensor = make()
        print(name, flush=True)
        line = outcome(call, tensor)
        del tensor
        print(repr(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
