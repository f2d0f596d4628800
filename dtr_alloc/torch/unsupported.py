"""Errors for things that a job cannot do once its CUDA memory is ours, and of which PyTorch would
not say so.

PyTorch cannot change its allocator once it is in use, so these patches stay, like the allocator,
until the process ends.

- *Sharing tensors with other processes.* The driver does not export memory as ours is mapped, and a
  reader in another process could not wait for a content. The allocator refuses the last step
  (native/bridge/cuda_bridge.cpp). That is too late for a queue, which pickles on a separate thread:
  the error would be on stderr and the receiver, such as a DataLoader, would wait for ever. So the
  error is sent in the tensor's place, and the receiver raises it. share_memory_(), which only
  announces the same on CUDA, is refused at once.
- *Another allocator.* Before the first use of CUDA, PyTorch would accept it silently.

Upstream: torch/multiprocessing/reductions.py (reduce_tensor, init_reductions), torch/storage.py
(UntypedStorage.share_memory_), torch/cuda/memory.py (change_current_allocator);
multiprocessing/queues.py names the thread.
"""

from __future__ import annotations

import functools
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing import reductions

from dtr_alloc.core import StateError

SHARING = (
    "dtr_alloc: tensors on the GPU cannot be shared with other processes under a budget. Send CPU "
    "tensors (tensor.cpu()) and copy them to the GPU where they arrive; a data set or collate_fn "
    "returns CPU tensors, and DataLoader(pin_memory=True) makes the copy fast"
)
OTHER_ALLOCATOR = (
    "dtr_alloc: the budget is held by PyTorch's CUDA allocator, which is dtr_alloc's now and "
    "cannot be changed: run the job without DTR_ALLOC_BUDGET and dtr_alloc.enable(), or leave its "
    "own allocator out"
)
_FEEDER = "QueueFeederThread"
_installed = False


def refuse_sharing(*_: Any) -> NoReturn:
    """Raises StateError. The pickle of a tensor in a queue calls it in the receiver."""
    raise StateError(SHARING)


def _refuse_other_allocator(*_: Any) -> NoReturn:
    raise StateError(OTHER_ALLOCATOR)


def install(device_type: str) -> None:
    """Installs the errors above for tensors on devices of this type. Once."""
    global _installed
    if _installed:
        return
    kinds: set[Any] = {*torch._tensor_classes, Tensor, torch.nn.Parameter}

    def reduce(tensor: Tensor) -> Any:
        if tensor.device.type != device_type:
            return reductions.reduce_tensor(tensor)
        if threading.current_thread().name == _FEEDER:
            return refuse_sharing, ()
        refuse_sharing()

    for kind in kinds:
        ForkingPickler.register(kind, reduce)

    share = UntypedStorage.share_memory_

    @functools.wraps(share)
    def share_memory_(storage: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type == device_type:
            refuse_sharing()
        return share(storage, *args, **kwargs)

    UntypedStorage.share_memory_ = share_memory_  # type: ignore[method-assign]
    own: Any = torch._C
    if hasattr(own, "_cuda_changeCurrentAllocator"):
        own._cuda_changeCurrentAllocator = _refuse_other_allocator
    _installed = True  # last: an interrupted call is made again, which does no harm
