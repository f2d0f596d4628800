"""What a job is: a training run that is a function of its seed alone."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Job(ABC):
    """A model, its optimizer and its data, built from a seed; ``step(i)`` trains one step.

    ``scale`` multiplies batch sizes, hence activation memory, and leaves parameters alone.
    Nothing here knows dtr_alloc: a job must run the same with and without it.
    """

    def __init__(self, scale: float = 1.0, device: str = "cpu", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.scale = scale
        self.device = torch.device(device)
        # Data are drawn on the CPU, so that every device sees the same batches.
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.losses: list[Tensor] = []
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Create modules, optimizers and fixed data."""

    def train(self, i: int) -> Tensor:
        """Run training step `i` (forward, backward, update) and return its 0-d loss."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = self.loss(i)
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss

    def loss(self, i: int) -> Tensor:
        """The loss of step `i`, before its backward pass. A job whose step is not the usual one has
        a `train` of its own instead."""
        raise NotImplementedError

    def step(self, i: int) -> Tensor:
        """Train step `i`, keep the detached loss and return it."""
        # A copy: mse_loss has its mean in memory of the size of all that it is the mean of.
        loss = self.train(i).detach().clone()
        self.losses.append(loss)
        return loss

    def drop_gradients(self) -> None:
        """Sets every gradient to None. With create_graph=True a gradient and its parameter are a
        cycle that no garbage collector sees (torch.autograd.backward warns of it): a step that
        was broken off would keep its whole graph."""
        for module in self.modules.values():
            for parameter in module.parameters():
                parameter.grad = None

    def batch(self, size: int) -> int:
        """`size` samples times the scale, at least one."""
        return max(1, round(size * self.scale))

    def add_module(self, name: str, module: nn.Module) -> nn.Module:
        """Register a module under `name` and move it to the job's device."""
        self.modules[name] = module.to(self.device)
        return self.modules[name]

    def randn(self, *shape: int) -> Tensor:
        """Standard normal data of the given shape, float32."""
        return torch.randn(shape, generator=self.generator).to(self.device)

    def randint(self, high: int, *shape: int) -> Tensor:
        """Integers in [0, high) of the given shape, int64."""
        return torch.randint(high, shape, generator=self.generator).to(self.device)

    def state(self) -> dict[str, Tensor]:
        """Copies of everything a user could compare: losses, parameters, gradients, buffers,
        optimizer state and the positions of the random number generators."""
        found: dict[str, Tensor] = {f"loss/{i}": loss for i, loss in enumerate(self.losses)}
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                found[f"param/{name}.{key}"] = parameter
                if parameter.grad is not None:
                    found[f"grad/{name}.{key}"] = parameter.grad
            for key, buffer in module.named_buffers():
                found[f"buffer/{name}.{key}"] = buffer
        for name, optimizer in self.optimizers.items():
            for index, slots in enumerate(optimizer.state.values()):
                for key, value in slots.items():
                    parts = value if isinstance(value, list) else [value]  # L-BFGS has lists
                    for number, part in enumerate(parts):
                        if part is not None:
                            found[f"optim/{name}.{index}.{key}.{number}"] = torch.as_tensor(part)
        copies = {key: value.detach().clone() for key, value in found.items()}
        copies["rng/default"] = torch.get_rng_state()
        copies["rng/data"] = self.generator.get_state()
        if self.device.type == "cuda":
            copies["rng/cuda"] = torch.cuda.get_rng_state(self.device)
        return copies


JobFactory = Callable[..., Job]


def as_bytes(tensor: Tensor) -> Tensor:
    """The content of a tensor as a 1-d uint8 tensor on the CPU: NaNs compare, -0.0 is not 0.0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def differences(reference: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names whose dtype, shape or bits differ, or that only one side has."""
    wrong = sorted(reference.keys() ^ other.keys())
    for key in reference.keys() & other.keys():
        a, b = reference[key], other[key]
        same_kind = a.dtype == b.dtype and a.shape == b.shape
        if not same_kind or not torch.equal(as_bytes(a), as_bytes(b)):
            wrong.append(key)
    return sorted(wrong)


def digest(state: dict[str, Tensor]) -> str:
    """A SHA-256 over names, dtypes, shapes and bits, as hex digits."""
    hasher = hashlib.sha256()
    for key in sorted(state):
        tensor = state[key]
        hasher.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(as_bytes(tensor).numpy().tobytes())
    return hasher.hexdigest()
