"""Escapes: accesses to a tensor's memory that bypass the dispatcher.

Operators go through the recorder; ``numpy()``, ``data_ptr()``, DLPack and the like do not. While
dtr_alloc is enabled they are replaced by functions that first make the storage resident:

- Those that *give the address away* also pin the storage until it dies, make it a constant, and
  have the engine watch its content, which others may overwrite. Inside of an operator that Python
  implements, a request for a bare address is taken for a kernel launch: the storage is pinned until
  the operator ends.
- Those that *share* it by a protocol for that (DLPack, ``__cuda_array_interface__``) do the same.
  If the content cannot be watched, which is everywhere but on the CPU, all its dependents are
  computed first, and nothing is computed from it later.
- Those that only *read* leave it as it was.
- Those that *write* have all dependents of the content computed before.
- Those that *move a generator* are noted inside of an operator that runs again.
- Those that *swap* the memory of two storages give both addresses away and write to both, and the
  engine then follows both.

They are replaced where PyTorch implements them, in built-in types, so a call by the class
(``torch._C.TensorBase.data_ptr(tensor)``) is guarded, too.

Other accesses meet a storage whose every access throws (native/bridge/): they fail with a message
and never read garbage. Or they have an earlier address, and writes to it are noticed on the CPU
(native/graph/contents.h).
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
from dtr_alloc.torch.bridge import Bridge
from dtr_alloc.torch.builtin_functions import Redirection, can_be_redirected
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

# Not guarded: with a shape it accesses no memory.
_over_storage = torch._C.TensorBase.set_

_undo: list[Callable[[], None]] = []

_pins: ContextVar[list[Any] | None] = ContextVar("pins", default=None)
"""The tensors whose addresses were requested inside of addresses_not_kept(), with their pins. C
code leaves a context, so this cannot outlast it, whatever is raised."""


@contextmanager
def _beside_torch_function() -> Iterator[None]:
    """Inside, nothing goes to a subclass's ``__torch_function__``. Afterwards the next call does
    not, either, if it would not have before (torch.overrides.redispatch_function, torch 2.13)."""
    peek = getattr(torch._C, "_peek_should_skip_torch_function", None)
    skips = peek is not None and peek()
    with torch._C.DisableTorchFunction():
        yield
    if skips:
        torch._C._set_skip_next_torch_function(True)  # type: ignore[attr-defined]


def install(runtime: Session) -> None:
    """Installs the guards. Once; see uninstall."""

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
        """The tensor of a subject, or a tensor over its storage."""
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

    def shares(subject: Any) -> None:
        if (tensor := managed(subject)) is not None:
            runtime.share(tensor)

    def pinned(subjects: Iterable[Any]) -> list[Any]:
        """Pins for a read: printing, for example, makes room for its own temporaries."""
        return [
            runtime.pin_for_a_while(tensor)
            for subject in subjects
            if (tensor := managed(subject)) is not None
        ]

    def settle(subjects: Iterable[Any]) -> None:
        for subject in subjects:
            if (tensor := managed(subject)) is not None:
                runtime.recorder.settle(tensor)

    def guard(
        owner: Any,
        name: str,
        guarding: Callable[[Callable[..., Any]], Callable[..., Any]],
        put: Any = setattr,
    ) -> None:
        """Replaces a function, if there is one."""
        original = getattr(owner, name, None)
        if original is not None:
            replace(owner, name, functools.wraps(original)(guarding(original)), put)

    def giving(original: Callable[..., Any], gives: Any = gives_away) -> Callable[..., Any]:
        def guarded(subject: Any, *args: Any, **kwargs: Any) -> Any:
            with _beside_torch_function():
                gives(subject)
            return original(subject, *args, **kwargs)

        return guarded

    def reading(original: Callable[..., Any], writes: bool = False) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with _beside_torch_function():
                pins = pinned((*args, *kwargs.values()))
            try:
                if writes:
                    settle(args[:1])
                return original(*args, **kwargs)
            finally:
                pins.clear()

        return guarded

    def swapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*swapped: Any) -> Any:
            for subject in swapped:
                gives_away(subject)
            settle(swapped)
            try:
                return original(*swapped)
            finally:
                settle(swapped)

        return guarded

    giving_address = functools.partial(giving, gives=functools.partial(gives_away, bare=True))
    sharing = functools.partial(giving, gives=shares)
    writing = functools.partial(reading, writes=True)
    in_base = runtime.bridge.set_member
    tensors, storages = torch._C.TensorBase, torch._C.StorageBase
    for base, guarding, names in (
        (tensors, giving_address, TENSOR_GIVES_ADDRESS),
        (tensors, giving, TENSOR_GIVES_AWAY),
        (tensors, reading, TENSOR_READS),
        (tensors, writing, TENSOR_WRITES),
        (storages, giving_address, STORAGE_GIVES_ADDRESS),
        (storages, giving, STORAGE_GIVES_AWAY),
        (storages, reading, STORAGE_READS),
        (storages, writing, STORAGE_WRITES),
        (storages, swapping, STORAGE_SWAPS),
        (
            torch._C.Generator,
            functools.partial(giving, gives=runtime.recorder.lend),
            GENERATOR_MOVES,
        ),
    ):
        for name in names:
            guard(base, name, guarding, in_base)
    # ``storage[i] = 0`` does not look the method up, except where a class of Python has it.
    guard(UntypedStorage, "__setitem__", writing)
    replace(storages, "__setitem__", UntypedStorage.__setitem__, in_base)
    guard(Tensor, "__repr__", reading)
    guard(Tensor, "__format__", reading)
    guard(Tensor, "__dlpack__", sharing)
    guard(torch.utils.dlpack, "to_dlpack", sharing)
    guard(torch, "to_dlpack", sharing)
    guard(torch._C, "_data_address", giving_address)

    # A table of C functions that give addresses away. Without it, callers use __dlpack__().
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
        # It uses addresses as keys, and reads.
        return addresses_not_kept(save, *args, **kwargs)

    replace(torch, "save", save_without_escapes)
    replace(torch.serialization, "save", save_without_escapes)


def addresses_not_kept(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function. Addresses that are requested inside, on this thread, are needed no longer
    than inside."""
    pins: list[Any] = []

    def call() -> Any:
        _pins.set(pins)
        return function(*args, **kwargs)

    try:
        return copy_context().run(call)
    finally:
        pins.clear()


def uninstall() -> None:
    """Takes back the replacements of install. After an interrupt it can be called again."""
    while _undo:
        _undo[-1]()
        _undo.pop()


@functools.cache
def raise_where_content_is_lost(bridge: Any) -> None:
    """For good, and while no guard is installed: PyTorch lets no exception out of this method, so a
    storage whose access throws would end the process."""
    base: Any = torch._C.StorageBase
    is_shared, data_ptr = base.is_shared, base.data_ptr

    @functools.wraps(is_shared)
    def guarded(storage: UntypedStorage) -> bool:
        data_ptr(storage)
        return bool(is_shared(storage))

    bridge.set_member(base, "is_shared", guarded)


def redirect(
    bridge: Bridge, function: Any, to: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Redirects a function of C, if that is possible, until uninstall()."""
    if can_be_redirected(function):
        redirection = Redirection(bridge, function, to)
        _undo.append(redirection.undo)
        redirection.start()


def replace(owner: Any, name: str, value: Any, put: Callable[..., None] = setattr) -> None:
    """Replaces an attribute until uninstall(), by ``put``."""
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
