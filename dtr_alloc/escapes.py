"""Escapes: the ways in which a tensor's memory is read past the dispatcher.

Operators go through the recorder; ``numpy()``, ``data_ptr()``, DLPack and their like do not.
While dtr_alloc is enabled they are replaced by functions that first make the storage resident:

- those that *give the address away* also pin the storage until it dies, make it a constant, and
  have the engine watch its content (others may write to it);
- those that *share* it by a protocol made for that (DLPack, ``__cuda_array_interface__``) do so,
  too; where a content cannot be watched, which is everywhere but on the CPU, they also have all
  that depends on it computed, and nothing is computed from it again;
- those that only *read* leave it as it was.

What is not caught here meets a storage whose every access throws (native/bridge/), so it fails
with a message and never reads garbage.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from dtr_alloc.core import ffi
from dtr_alloc.recorder import unseen

TENSOR_GIVES_AWAY = ("numpy", "data_ptr")
TENSOR_SHARES = ("__dlpack__",)
TENSOR_READS = ("tolist", "__repr__", "__format__", "set_")
STORAGE_GIVES_AWAY = ("data_ptr", "_share_fd_cpu_", "_share_filename_cpu_", "share_memory_")
STORAGE_READS = (
    *("__getitem__", "__setitem__", "_write_file", "tolist", "_byteswap", "resize_", "copy_"),
    *("clone", "fill_"),
)

# That of the base class: the one of Tensor is guarded, and given a shape it touches no memory.
_over_storage = torch._C.TensorBase.set_

_undo: list[Callable[[], None]] = []
_asked = threading.local()


def install(runtime: Any) -> None:
    """Puts the guards in place. Once; see uninstall."""

    def whole(storage: UntypedStorage) -> Tensor | None:
        """A tensor over a storage of the managed device; the storage becomes resident."""
        if storage.device.type != runtime.device_type or storage.nbytes() == 0:
            return None
        runtime.bring_back(ffi.cast("void *", storage._cdata))
        with unseen():
            empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
            return _over_storage(empty, storage, 0, (storage.nbytes(),), (1,))

    def gives_away(subject: Any) -> None:
        tensor = subject if isinstance(subject, Tensor) else whole(subject)
        if tensor is None:
            return
        pinned = getattr(_asked, "pinned", None)
        if not runtime.handle(tensor):
            return
        if pinned is None:
            runtime.give_away(tensor)
        else:
            pinned.append(runtime.pin(tensor))

    def shares(tensor: Any) -> None:
        if isinstance(tensor, Tensor) and runtime.handle(tensor):
            runtime.share(tensor)

    def reading(subjects: tuple[Any, ...]) -> list[UntypedStorage]:
        """Pins what will be read: printing, say, makes room for its own temporaries."""
        pinned = []
        for subject in subjects:
            if isinstance(subject, TypedStorage):
                subject = subject._untyped_storage
            tensor = whole(subject) if isinstance(subject, UntypedStorage) else subject
            if isinstance(tensor, Tensor) and runtime.handle(tensor):
                pinned.append(runtime.pin(tensor))
        return pinned

    def guard_giver(owner: Any, name: str, gives_away: Any = gives_away) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(subject: Any, *args: Any, **kwargs: Any) -> Any:
            gives_away(subject)
            return original(subject, *args, **kwargs)

        replace(owner, name, guarded)

    def guard_reader(owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            pinned = reading(args)
            try:
                return original(*args, **kwargs)
            finally:
                _unpin(runtime, pinned)

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

    # A table of C functions that give addresses away past __dlpack__(). Who finds none asks that.
    _remove(Tensor, "__dlpack_c_exchange_api__")

    interface = Tensor.__dict__["__cuda_array_interface__"]

    def guarded_interface(tensor: Tensor) -> Any:
        shares(tensor)
        return interface.fget(tensor)

    replace(Tensor, "__cuda_array_interface__", property(guarded_interface))

    save = torch.save

    @functools.wraps(save)
    def save_without_escapes(*args: Any, **kwargs: Any) -> Any:
        # It asks for addresses as keys, and reads.
        with addresses_not_kept(runtime):
            return save(*args, **kwargs)

    replace(torch, "save", save_without_escapes)
    replace(torch.serialization, "save", save_without_escapes)


@contextmanager
def addresses_not_kept(runtime: Any) -> Iterator[None]:
    """Whoever asks for an address inside, on this thread, needs it no longer than inside."""
    outer = getattr(_asked, "pinned", None)
    _asked.pinned = []
    try:
        yield
    finally:
        pinned, _asked.pinned = _asked.pinned, outer
        _unpin(runtime, pinned)


def _unpin(runtime: Any, pinned: list[UntypedStorage]) -> None:
    for storage in pinned:
        runtime.unpin(storage)


def uninstall() -> None:
    """Puts back what install replaced."""
    while _undo:
        _undo.pop()()


def replace(owner: Any, name: str, value: Any) -> None:
    """Puts a value in an attribute's place until uninstall()."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    # What came from a base class is put back by removing ours.
    _undo.append(lambda: delattr(owner, name) if own is None else setattr(owner, name, own))


def _remove(owner: Any, name: str) -> None:
    own = vars(owner).get(name)
    if own is not None:
        delattr(owner, name)
        _undo.append(lambda: setattr(owner, name, own))
