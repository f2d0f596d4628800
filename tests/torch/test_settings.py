"""What a job sets between an operator's first run and a later one is put back for the later one."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import checked_session, evicted
from native_fixtures import on_threads
from torch import Tensor

import dtr_alloc


@dataclass(frozen=True)
class Setting:
    """A setting with two values."""

    put: Callable[[Any], Any]
    get: Callable[[], Any]
    values: tuple[Any, Any]


def attribute(owner: Any, name: str, *values: Any) -> Setting:
    return Setting(lambda value: setattr(owner, name, value), lambda: getattr(owner, name), values)


def of_backend(name: str, *values: bool) -> Setting:
    """One of torch._C that is set and got by functions."""
    return Setting(getattr(torch._C, f"_set_{name}"), getattr(torch._C, f"_get_{name}"), values)


def attention(name: str) -> Setting:
    cuda = torch.backends.cuda
    return Setting(getattr(cuda, f"enable_{name}"), getattr(cuda, f"{name}_enabled"), (True, False))


def flushes() -> bool:
    """Whether denormal numbers become zero, as a kernel sees it."""
    return bool((torch.full((1,), 1e-39, dtype=torch.float32) * 0.5)[0] == 0)


backends = torch.backends
ON = ("cudnn_enabled", "cudnn_allow_tf32", "mkldnn_enabled", "nnpack_enabled")
OFF = ("cudnn_benchmark", "cudnn_deterministic", "cublas_allow_tf32", "mkldnn_deterministic")
SETTINGS = {
    "default_dtype": Setting(
        torch.set_default_dtype, torch.get_default_dtype, (torch.float32, torch.float64)
    ),
    "num_threads": Setting(torch.set_num_threads, torch.get_num_threads, (1, 2)),
    "flush_denormal": Setting(torch.set_flush_denormal, flushes, (False, True)),
    "float32_matmul_precision": Setting(
        torch.set_float32_matmul_precision,
        torch.get_float32_matmul_precision,
        ("highest", "medium"),
    ),
    "deterministic": Setting(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled,
        (False, True),
    ),
    "fill": attribute(torch.utils.deterministic, "fill_uninitialized_memory", True, False),
    "mkldnn.matmul.fp32_precision": attribute(
        backends.mkldnn.matmul, "fp32_precision", "none", "bf16"
    ),
    "fp16_reduction": attribute(
        backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", True, False
    ),
    **{name: of_backend(name, True, False) for name in ON},
    **{name: of_backend(name, False, True) for name in OFF},
    **{n: attention(n) for n in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")},
}


@pytest.fixture
def change() -> Iterator[Callable[[str, int], None]]:
    """Gives a setting, by name, its first or second value; at the end it has its default again."""
    changed: set[str] = set()

    def change(name: str, value: int) -> None:
        changed.add(name)
        SETTINGS[name].put(SETTINGS[name].values[value])

    yield change
    for name in changed:
        SETTINGS[name].put(SETTINGS[name].values[0])


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("first", [0, 1])
def test_a_recomputation_sees_the_setting_of_its_first_run_and_the_job_its_own(name, first, change):
    setting = SETTINGS[name]
    seen: list[Any] = []

    def kernel(x: Tensor) -> Tensor:
        seen.append(setting.get())
        return x + 1

    with checked_session():
        x = torch.linspace(0, 1, 4096)
        change(name, first)
        y = dtr_alloc.run_as_operator(kernel, x)
        change(name, 1 - first)
        dtr_alloc.materialize(evicted(y))
        assert setting.get() == setting.values[1 - first]
        assert seen == [setting.values[first]] * 2


RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "default_dtype": lambda x: torch.arange(4096) / 3,
    "flush_denormal": lambda x: x * 1e-39,
    "mkldnn.matmul.fp32_precision": lambda x: x.view(64, 64) @ x.view(64, 64),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("first", [0, 1])
def test_results_have_their_bits_again_after_a_setting_has_changed(name, first, change):
    data = torch.rand(4096)
    with checked_session():
        x = data.clone()
        change(name, first)
        y = RESULTS[name](x)
        expected = y.clone()
        change(name, 1 - first)
        dtr_alloc.materialize(evicted(y))
        change(name, first)  # comparing is an operator, too
        assert torch.equal(y, expected)


def test_operators_of_other_threads_wait_while_a_recomputation_has_the_process_settings(change):
    inside, go_on = threading.Event(), threading.Event()
    runs = 0

    def kernel(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        if runs == 2:
            inside.set()
            go_on.wait(60)
        return x + 1

    made: list[Tensor] = []

    def other() -> None:
        inside.wait(60)
        threading.Timer(0.2, go_on.set).start()
        made.append(torch.full((4096,), 1 / 3))

    with checked_session():
        x = torch.linspace(0, 1, 4096)
        change("default_dtype", 1)
        y = dtr_alloc.run_as_operator(kernel, x)
        change("default_dtype", 0)
        on_threads(other, lambda: dtr_alloc.materialize(evicted(y)))
        assert made[0].dtype == torch.float32
