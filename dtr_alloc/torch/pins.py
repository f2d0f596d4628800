"""Users' pins. The engine counts them by handle (graph/pins.h); here are their owners.

A pin is requested with a tensor. It follows that tensor to other memory (``set_()``, ``.data = ``),
and any alias of the tensor may take it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from dtr_alloc.core import StateError, ffi, lib
from dtr_alloc.torch.escapes import replace
from dtr_alloc.torch.session import Session

_BY_ROWS = ("crow_indices", "col_indices", "values")
_BY_COLUMNS = ("ccol_indices", "row_indices", "values")
_COMPONENTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _BY_ROWS,
    torch.sparse_bsr: _BY_ROWS,
    torch.sparse_csc: _BY_COLUMNS,
    torch.sparse_bsc: _BY_COLUMNS,
}


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors whose storages hold the content of a tensor: itself, or the parts of a sparse
    tensor or a subclass. None if the content is elsewhere (mkldnn)."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):
            if isinstance(part, Tensor):  # DTensor names its mesh, too
                yield from parts(part)
    elif tensor.layout in _COMPONENTS:
        with torch.no_grad():
            components = [getattr(tensor, name)() for name in _COMPONENTS[tensor.layout]]
        yield from components  # outside: the caller keeps its grad mode
    elif (
        tensor.layout == torch.strided
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    ):
        yield tensor


class Pins:
    """The pins of a session."""

    def __init__(self, runtime: Session) -> None:
        self._runtime = runtime
        # The storages of pins by their tensors. A weak reference keeps another storage from getting
        # the same address.
        self._asked: Any = WeakTensorKeyDictionary()

    def install(self) -> None:
        """Makes pins follow their tensors, until escapes.uninstall()."""
        self._asked.clear()
        data: Any = torch._C.TensorBase.data
        replace(Tensor, "set_", self._followed(Tensor.set_))
        replace(
            Tensor,
            "data",
            property(data.__get__, self._followed(data.__set__), data.__delete__),
        )

    def pin(self, tensor: Tensor) -> None:
        """Takes one pin, or raises and takes none."""
        taken: list[Tensor] = []
        try:
            for part in parts(tensor):
                self._take(part)
                taken.append(part)
        except BaseException:
            for part in taken:
                self._give_back(part)
            raise

    def unpin(self, tensor: Tensor) -> None:
        """Takes one pin back. Raises StateError, and changes nothing, if there is none."""
        taken: list[Tensor] = []
        for part in parts(tensor):
            if not self._give_back(part):
                for other in taken:
                    self._take(other)
                raise StateError("unpin: the tensor's storage is not pinned")
            taken.append(part)

    def _take(self, part: Tensor) -> None:
        storage = self._runtime.pin(part)
        self._asked.setdefault(part, []).append(StorageWeakRef(storage))

    def _give_back(self, part: Tensor) -> bool:
        storage = part.untyped_storage()
        asked = self._asked.pop(part, [])
        found = self._runtime.unpin(storage)
        # It may have got other memory unnoticed (torch.ops.aten.set_).
        ref = next((ref for ref in asked if (ref.cdata == storage._cdata) == found), None)
        if ref is not None:
            asked.remove(ref)
            if not found:
                lib.dtr_unpin(self._runtime.engine, ffi.cast("void *", ref.cdata))
                found = True
        if asked:
            self._asked[part] = asked
        return found

    def _followed(self, give_memory: Callable[..., Any]) -> Callable[..., Any]:
        def following(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self._asked or tensor not in self._asked:
                return give_memory(tensor, *args, **kwargs)
            before = tensor.untyped_storage()
            try:
                return give_memory(tensor, *args, **kwargs)
            finally:
                self._follow(tensor, before)

        return following

    def _follow(self, tensor: Tensor, before: UntypedStorage) -> None:
        if tensor.untyped_storage()._cdata == before._cdata:
            return
        asked = self._asked.pop(tensor)
        there = [ref for ref in asked if ref.cdata == before._cdata]
        if elsewhere := [ref for ref in asked if ref.cdata != before._cdata]:
            self._asked[tensor] = elsewhere
        # An alias may have taken some of them back.
        for _ in range(sum(self._runtime.unpin(before) for _ in there)):
            self._take(tensor)
