"""Escapes: the ways in which a tensor's memory is read past the dispatcher.

Operators go through the recorder; ``numpy()``, ``data_ptr()``, DLPack and their like do not.
While dtr_alloc is enabled they are replaced by functions that first make the storage resident:

- those that *give the address away* also pin the storage until it dies, make it a constant, and
  have the engine watch its content (others may write to it);
- those that only *read* leave it as it was.

What is not caught here meets a storage whose every access throws (native/bridge/), so it fails
with a message and never reads garbage.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from dtr_alloc.core import ffi, lib

TENSOR_GIVES_AWAY = ("numpy", "data_ptr", "__dlpack__")
TENSOR_READS = ("tolist",)
STORAGE_GIVES_AWAY = ("data_ptr", "_share_fd_cpu_", "_share_filename_cpu_", "share_memory_")
STORAGE_READS = ("__getitem__", "__setitem__", "_write_file", "tolist", "_byteswap", "resize_")

_undo: list[Callable[[], None]] = []
_saving = threading.local()


def install(runtime: Any) -> None:
    """Puts the guards in place. Once; see uninstall."""

    def tensor_escapes(tensor: Tensor) -> None:
        runtime.pin(tensor, escaped=True)

    def tensor_is_read(tensor: Tensor) -> None:
        runtime.bring_back(runtime.handle(tensor))

    def whole(storage: UntypedStorage) -> Tensor:
        # Under unseen(): the operators that make this tensor are not the job's.
        from dtr_alloc.replay import unseen

        with unseen():
            return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def storage_is_read(storage: UntypedStorage) -> None:
        if storage.device.type == runtime.device_type:
            runtime.bring_back(ffi.cast("void *", storage._cdata))

    def storage_escapes(storage: UntypedStorage) -> None:
        if storage.device.type != runtime.device_type:
            return
        storage_is_read(storage)
        if getattr(_saving, "pinned", None) is not None:
            # torch.save asks for addresses as keys and reads: no address leaves.
            _saving.pinned.append(whole(storage))
            runtime.pin(_saving.pinned[-1], escaped=False)
        else:
            runtime.pin(whole(storage), escaped=True)

    for name in TENSOR_GIVES_AWAY:
        _guard(Tensor, name, tensor_escapes)
    for name in TENSOR_READS:
        _guard(Tensor, name, tensor_is_read)
    for name in STORAGE_GIVES_AWAY:
        _guard(UntypedStorage, name, storage_escapes)
    for name in STORAGE_READS:
        _guard(UntypedStorage, name, storage_is_read)
    _guard(torch.utils.dlpack, "to_dlpack", tensor_escapes)
    _guard(torch, "to_dlpack", tensor_escapes)

    interface = Tensor.__dict__["__cuda_array_interface__"]
    _replace(
        Tensor,
        "__cuda_array_interface__",
        property(lambda tensor: (tensor_escapes(tensor), interface.fget(tensor))[1]),
    )

    save = torch.save

    @functools.wraps(save)
    def save_without_escapes(*args: Any, **kwargs: Any) -> Any:
        outer = getattr(_saving, "pinned", None)
        _saving.pinned = []
        try:
            return save(*args, **kwargs)
        finally:
            pinned, _saving.pinned = _saving.pinned, outer
            for tensor in pinned:
                lib.dtr_unpin(runtime.engine, runtime.handle(tensor))

    _replace(torch, "save", save_without_escapes)
    _replace(torch.serialization, "save", save_without_escapes)


def uninstall() -> None:
    """Puts back what install replaced."""
    while _undo:
        _undo.pop()()


def _guard(owner: Any, name: str, before: Callable[[Any], None]) -> None:
    """Replaces owner.name by a function that calls before(first argument) and then the original."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def guarded(subject: Any, *args: Any, **kwargs: Any) -> Any:
        before(subject)
        return original(subject, *args, **kwargs)

    _replace(owner, name, guarded)


def _replace(owner: Any, name: str, value: Any) -> None:
    own = vars(owner).get(name)
    setattr(owner, name, value)
    # What came from a base class is put back by removing ours.
    _undo.append(lambda: delattr(owner, name) if own is None else setattr(owner, name, own))
