"""Escapes: the ways in which a tensor's memory is read past the dispatcher.

Operators go through the recorder; ``numpy()``, ``data_ptr()``, DLPack and their like do not.
While dtr_alloc is enabled they are replaced by functions that first make the storage resident:

- those that *give the address away* also pin the storage until it dies, make it a constant, and
  have the engine watch its content (others may write to it). Inside of an operator that Python
  implements, who asks for a bare address is taken to launch a kernel: the storage is pinned until
  the operator ends;
- those that *share* it by a protocol made for that (DLPack, ``__cuda_array_interface__``) do so,
  too; where a content cannot be watched, which is everywhere but on the CPU, they also have all
  that depends on it computed, and nothing is computed from it again;
- those that only *read* leave it as it was;
- those that *write* have all that depends on the content computed before;
- those that put a *generator* elsewhere are noted inside of an operator that runs again;
- those that *swap* the memory of two storages give both addresses away and write to both, and the
  engine looks where the two are then.

They are replaced where PyTorch implements them, in the types that are built in, so that a call by
the class (``torch._C.TensorBase.data_ptr(tensor)``) is guarded, too.

What is not caught here meets a storage whose every access throws (native/bridge/), so it fails
with a message and never reads garbage; or it has the address from before, and what it writes there
is noticed on the CPU (native/graph/contents.h).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from dtr_alloc.core import ffi
from dtr_alloc.torch.recorder import ABOVE_KERNELS
from dtr_alloc.torch.session import Session

TENSOR_GIVES_ADDRESS = ("data_ptr", "const_data_ptr")
TENSOR_GIVES_AWAY = ("numpy",)
TENSOR_READS = ("tolist", "set_")
TENSOR_WRITES = ("apply_", "map_", "map2_")
STORAGE_GIVES_ADDRESS = ("data_ptr",)
STORAGE_GIVES_AWAY = ("_share_fd_cpu_", "_share_filename_cpu_")
STORAGE_READS = (
    *("__getitem__", "_write_file", "resize_"),
    *("is_shared", "_get_filename", "_shared_incref", "_shared_decref"),
)
STORAGE_WRITES = ("_byteswap", "_set_from_file", "copy_", "fill_")
STORAGE_SWAPS = ("_swap_data_ptr_", "_resize_with_addr_")
GENERATOR_MOVES = ("manual_seed", "seed", "set_state", "graphsafe_set_state", "set_offset")

# Not guarded: given a shape it touches no memory.
_over_storage = torch._C.TensorBase.set_

_undo: list[Callable[[], None]] = []

_pins: ContextVar[list[Any] | None] = ContextVar("pins", default=None)
"""Who asks for an address inside of addresses_not_kept(): the tensors, and what pins them. A
context is left by C code, so this cannot outlast it, whatever is raised."""


@contextmanager
def _beside_torch_function() -> Iterator[None]:
    """Inside of it nothing goes to a subclass's ``__torch_function__``; behind it the next call
    does not, either, if it would not have (torch.overrides.redispatch_function, torch 2.13)."""
    peek = getattr(torch._C, "_peek_should_skip_torch_function", None)
    skips = peek is not None and peek()
    with torch._C.DisableTorchFunction():
        yield
    if skips:
        torch._C._set_skip_next_torch_function(True)  # type: ignore[attr-defined]


def install(runtime: Session) -> None:
    """Puts the guards in place. Once; see uninstall."""

    def whole(storage: UntypedStorage) -> Tensor | None:
        """A tensor over a storage of the managed device; the storage becomes resident."""
        if storage.device.type != runtime.device_type or storage.nbytes() == 0:
            return None
        runtime.bring_back(ffi.cast("void *", storage._cdata))
        # As a kernel only: without autograd, autocast or modes, and not captured.
        with (
            torch._C._ExcludeDispatchKeyGuard(ABOVE_KERNELS),
            torch._C.DisableTorchFunction(),
        ):
            empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
            return _over_storage(empty, storage, 0, (storage.nbytes(),), (1,))

    def managed(subject: Any) -> Tensor | None:
        """The tensor that a subject is, or a tensor over the storage that it is."""
        if isinstance(subject, TypedStorage):
            subject = subject._untyped_storage
        tensor = whole(subject) if isinstance(subject, UntypedStorage) else subject
        if not (isinstance(tensor, Tensor) and runtime.handle(tensor)):
            return None
        runtime.recorder.keep_inside(tensor)
        return tensor

    def gives_away(subject: Any, bare: bool = False) -> None:
        if (tensor := managed(subject)) is None:
            return
        if (pins := _pins.get()) is not None:
            pins.append((tensor, runtime.pin_for_a_while(tensor)))
        elif not (bare and runtime.recorder.keep_inside(tensor)):
            runtime.give_away(tensor)

    gives_address = functools.partial(gives_away, bare=True)

    def shares(subject: Any) -> None:
        if (tensor := managed(subject)) is not None:
            runtime.share(tensor)

    def reading(subjects: Iterable[Any]) -> list[Any]:
        """Pins what will be read: printing, say, makes room for its own temporaries."""
        return [
            runtime.pin_for_a_while(tensor)
            for subject in subjects
            if (tensor := managed(subject)) is not None
        ]

    def settle(subjects: Iterable[Any]) -> None:
        for subject in subjects:
            if (tensor := managed(subject)) is not None:
                runtime.recorder.settle(tensor)

    def guard_giver(owner: Any, name: str, gives: Any = gives_away, put: Any = setattr) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(subject: Any, *args: Any, **kwargs: Any) -> Any:
            with _beside_torch_function():
                gives(subject)
            return original(subject, *args, **kwargs)

        replace(owner, name, guarded, put)

    def guard_reader(owner: Any, name: str, put: Any = setattr, writes: bool = False) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with _beside_torch_function():
                pins = reading((*args, *kwargs.values()))
            try:
                if writes:
                    settle(args[:1])
                return original(*args, **kwargs)
            finally:
                pins.clear()

        replace(owner, name, guarded, put)

    def guard_swapper(owner: Any, name: str, put: Any) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*swapped: Any) -> Any:
            for subject in swapped:
                gives_away(subject)
            settle(swapped)
            try:
                return original(*swapped)
            finally:
                settle(swapped)

        replace(owner, name, guarded, put)

    in_base = runtime.bridge.set_member
    tensors, storages = torch._C.TensorBase, torch._C.StorageBase
    for base, give_address, give_away, reads, writes in (
        (tensors, TENSOR_GIVES_ADDRESS, TENSOR_GIVES_AWAY, TENSOR_READS, TENSOR_WRITES),
        (storages, STORAGE_GIVES_ADDRESS, STORAGE_GIVES_AWAY, STORAGE_READS, STORAGE_WRITES),
    ):
        for name in give_address:
            guard_giver(base, name, gives_address, in_base)
        for name in give_away:
            guard_giver(base, name, put=in_base)
        for name in reads:
            guard_reader(base, name, in_base)
        for name in writes:
            guard_reader(base, name, in_base, writes=True)
    for name in STORAGE_SWAPS:
        guard_swapper(storages, name, in_base)
    for name in GENERATOR_MOVES:
        guard_giver(torch._C.Generator, name, runtime.recorder.lend, in_base)
    # ``storage[i] = 0`` does not look the method up, but where a class of Python has it.
    guard_reader(UntypedStorage, "__setitem__", writes=True)
    replace(storages, "__setitem__", UntypedStorage.__setitem__, in_base)
    guard_reader(Tensor, "__repr__")
    guard_reader(Tensor, "__format__")
    guard_giver(Tensor, "__dlpack__", shares)
    guard_giver(torch.utils.dlpack, "to_dlpack", shares)
    guard_giver(torch, "to_dlpack", shares)
    guard_giver(torch._C, "_data_address", gives_address)

    # A table of C functions that give addresses away past __dlpack__(). Who finds none asks that.
    _remove(Tensor, "__dlpack_c_exchange_api__")

    interface = Tensor.__dict__["__cuda_array_interface__"]

    def guarded_interface(tensor: Tensor) -> Any:
        with _beside_torch_function():
            shares(tensor)
        return interface.fget(tensor)

    replace(Tensor, "__cuda_array_interface__", property(guarded_interface))

    save = torch.save

    @functools.wraps(save)
    def save_without_escapes(*args: Any, **kwargs: Any) -> Any:
        # It asks for addresses as keys, and reads.
        return addresses_not_kept(save, *args, **kwargs)

    replace(torch, "save", save_without_escapes)
    replace(torch.serialization, "save", save_without_escapes)


def addresses_not_kept(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function. Whoever asks for an address inside, on this thread, needs it no longer than
    inside."""
    pins: list[Any] = []

    def call() -> Any:
        _pins.set(pins)
        return function(*args, **kwargs)

    try:
        return copy_context().run(call)
    finally:
        pins.clear()


def uninstall() -> None:
    """Puts back what install replaced. Whoever is interrupted calls it again."""
    while _undo:
        _undo[-1]()
        _undo.pop()


@functools.cache
def raise_where_content_is_lost(bridge: Any) -> None:
    """For good, and while no guard is in place: PyTorch lets no exception out of this method, so
    that a storage whose access throws would end the process."""
    base: Any = torch._C.StorageBase
    is_shared, data_ptr = base.is_shared, base.data_ptr

    @functools.wraps(is_shared)
    def guarded(storage: UntypedStorage) -> bool:
        data_ptr(storage)
        return bool(is_shared(storage))

    bridge.set_member(base, "is_shared", guarded)


def undo_later(undo: Callable[[], None]) -> None:
    """Has uninstall() call it. More calls of it must do nothing: uninstall() may be interrupted."""
    _undo.append(undo)


def replace(owner: Any, name: str, value: Any, put: Callable[..., None] = setattr) -> None:
    """Puts a value in an attribute's place until uninstall(); put does so."""
    own = vars(owner).get(name)

    def put_back() -> None:
        if own is not None:
            put(owner, name, own)
        elif name in vars(owner):
            delattr(owner, name)  # what came from a base class is found again

    _undo.append(put_back)
    put(owner, name, value)


def _remove(owner: Any, name: str) -> None:
    own = vars(owner).get(name)
    if own is not None:
        _undo.append(lambda: setattr(owner, name, own))
        delattr(owner, name)
