"""Escapes: the ways in which a tensor's memory is read past the dispatcher.

Operators go through the recorder; ``numpy()``, ``data_ptr()``, DLPack and their like do not.
While dtr_alloc is enabled they are replaced by functions that first make the storage resident:

- those that *give the address away* also pin the storage until it dies, make it a constant, and
  have the engine watch its content (others may write to it);
- those that *share* it by a protocol made for that (DLPack, ``__cuda_array_interface__``) do so,
  too; where a content cannot be watched, which is everywhere but on the CPU, they also have all
  that depends on it computed, and nothing is computed from it again;
- those that only *read* leave it as it was;
- those that *write* have all that depends on the content computed before.

What is not caught here meets a storage whose every access throws (native/bridge/), so it fails
with a message and never reads garbage; or it has the address from before, and what it writes there
is noticed on the CPU (native/graph/contents.h).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from dtr_alloc.core import ffi
from dtr_alloc.torch.recorder import ABOVE_KERNELS

TENSOR_GIVES_AWAY = ("numpy", "data_ptr")
TENSOR_SHARES = ("__dlpack__",)
TENSOR_READS = ("tolist", "__repr__", "__format__", "set_")
STORAGE_GIVES_AWAY = ("data_ptr", "_share_fd_cpu_", "_share_filename_cpu_", "share_memory_")
STORAGE_READS = ("__getitem__", "_write_file", "tolist", "resize_", "clone")
STORAGE_WRITES = ("__setitem__", "_byteswap", "copy_", "fill_")

# That of the base class: the one of Tensor is guarded, and given a shape it touches no memory.
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


def install(runtime: Any) -> None:
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

    def gives_away(subject: Any) -> None:
        tensor = subject if isinstance(subject, Tensor) else whole(subject)
        if tensor is None or not runtime.handle(tensor):
            return
        pins = _pins.get()
        if pins is None:
            runtime.give_away(tensor)
        else:
            pins.append((tensor, runtime.pin_for_a_while(tensor)))

    def shares(tensor: Any) -> None:
        if isinstance(tensor, Tensor) and runtime.handle(tensor):
            runtime.share(tensor)

    def reading(subjects: tuple[Any, ...]) -> list[Any]:
        """Pins what will be read: printing, say, makes room for its own temporaries."""
        pins = []
        for subject in subjects:
            if isinstance(subject, TypedStorage):
                subject = subject._untyped_storage
            tensor = whole(subject) if isinstance(subject, UntypedStorage) else subject
            if isinstance(tensor, Tensor) and runtime.handle(tensor):
                pins.append(runtime.pin_for_a_while(tensor))
        return pins

    def guard_giver(owner: Any, name: str, gives_away: Any = gives_away) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(subject: Any, *args: Any, **kwargs: Any) -> Any:
            with _beside_torch_function():
                gives_away(subject)
            return original(subject, *args, **kwargs)

        replace(owner, name, guarded)

    def guard_reader(owner: Any, name: str, writes: bool = False) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with _beside_torch_function():
                pins = reading(args)
            try:
                if writes and (written := whole(args[0])) is not None:
                    runtime.recorder.settle(written)
                return original(*args, **kwargs)
            finally:
                pins.clear()

        replace(owner, name, guarded)

    for name in TENSOR_GIVES_AWAY:
        guard_giver(Tensor, name)
    for name in STORAGE_GIVES_AWAY:
        guard_giver(UntypedStorage, name)
    for name in TENSOR_SHARES:
        guard_giver(Tensor, name, shares)
    guard_giver(torch.utils.dlpack, "to_dlpack", shares)
    guard_giver(torch, "to_dlpack", shares)
    for name in TENSOR_READS:
        guard_reader(Tensor, name)
    for name in STORAGE_READS:
        guard_reader(UntypedStorage, name)
    for name in STORAGE_WRITES:
        guard_reader(UntypedStorage, name, writes=True)
    guard_giver(torch._C, "_data_address")

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


def replace(owner: Any, name: str, value: Any) -> None:
    """Puts a value in an attribute's place until uninstall()."""
    own = vars(owner).get(name)

    def put_back() -> None:
        if own is not None:
            setattr(owner, name, own)
        elif name in vars(owner):
            delattr(owner, name)  # what came from a base class is found again

    _undo.append(put_back)
    setattr(owner, name, value)


def _remove(owner: Any, name: str) -> None:
    own = vars(owner).get(name)
    if own is not None:
        _undo.append(lambda: setattr(owner, name, own))
        delattr(owner, name)
