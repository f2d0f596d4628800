"""Functions of C++ extensions that are no operators (dtr_alloc/torch/extensions.py)."""

import os
import subprocess
import sys
import sysconfig
import weakref
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.torch import custom_operators

MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension raw_square, compiled."""
    built = tmp_path_factory.mktemp("raw_square") / "raw_square.so"
    pytorch = Path(torch.__file__).parent
    headers = (pytorch / "include", pytorch / "include/torch/csrc/api/include")
    subprocess.run(
        (
            *(os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC"),
            *(f"-I{folder}" for folder in (*headers, sysconfig.get_paths()["include"])),
            *(str(Path(__file__).with_name("raw_square.cpp")), "-o", str(built)),
            *(f"-L{pytorch / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
        ),
        check=True,
    )
    return built


def imported(library: Path) -> ModuleType:
    """As torch.utils.cpp_extension.load() does."""
    spec = spec_from_file_location("raw_square", library)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(extension: ModuleType, steps: int) -> list[Tensor]:
    """The parameters that a job ends with whose activation is the extension's."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return extension.square(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return extension.square_backward(gradient, *ctx.saved_tensors)

    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 128) for _ in range(8)]
    parameters = [each for layer in layers for each in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    x = torch.randn(2048, 128)
    for _ in range(steps):
        y = x
        for layer in layers:
            y = Square.apply(layer(y)).tanh()
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
    return [each.detach().clone() for each in parameters]


@pytest.mark.parametrize("first", ["the session", "the extension"])
def test_what_it_reads_is_there_and_the_bits_are_the_same(library, first):
    if first == "the extension":
        extension = imported(library)
    with dtr_alloc.session(budget=17 * MIB, device="cpu"):
        if first == "the session":
            extension = imported(library)
        trained = train(extension, 4)
        assert dtr_alloc.stats()["rematerializations"] > 8
    assert extension.square.__self__ is extension  # the guard is gone
    assert all(map(torch.equal, trained, train(extension, 4)))


def test_what_it_makes_stays_until_it_returns(library):
    extension = imported(library)
    x = torch.full((512, 512), 2.0)
    with dtr_alloc.session(budget=12 * MIB, device="cpu"):
        weight = torch.eye(512)
        dear = [torch.tanh(x @ weight) for _ in range(9)]
        for _ in range(6):
            fourth = extension.fourth(x * 1, extension.square)
            assert torch.equal(fourth, torch.full((512, 512), 16.0))
        made = []

        def square(x: Tensor) -> Tensor:
            made.append(x * x)
            assert torch.equal(extension.fourth(x, extension.square), made[-1] * made[-1])
            assert not dtr_alloc.evict(made[-1])
            if len(made) > 6:
                raise ValueError(len(made))
            return made[-1]

        for _ in range(6):
            assert torch.equal(extension.fourth(x * 1, square), fourth)
        with pytest.raises(ValueError, match="7"):
            extension.fourth(x * 1, square)
        assert all(dtr_alloc.evict(each) for each in made[3:] if dtr_alloc.is_resident(each))
        assert all(torch.equal(each, dear[0]) for each in dear)


@pytest.mark.parametrize("trust", [(), ("raw_square",)])
@pytest.mark.parametrize("notices", [True, False])
def test_what_it_overwrites_is_known(library, monkeypatch, notices, trust):
    with dtr_alloc.session(budget=64 * MIB, device="cpu", trust=trust):
        extension = imported(library)
        monkeypatch.setattr(dtr_alloc.torch.api.active(), "notices_writes", notices)
        for call in range(6):
            x = torch.ones(512, 512) * 2
            out = torch.zeros(512, 512) + 1
            before = out + 1
            for each in (x, out, before):
                assert dtr_alloc.evict(each)
            assert extension.square_into(out, x) is out
            result = extension.square(x)
            assert dtr_alloc.evict(x)
            assert dtr_alloc.evict(out) == (call >= 3 and bool(trust))
            assert dtr_alloc.evict(result) == bool(trust)
            assert torch.equal(out, torch.full((512, 512), 4.0))
            assert torch.equal(result, out)
            assert torch.equal(before, torch.full((512, 512), 2.0))
            gone = weakref.ref(x)
            del x
            assert gone() is None


@pytest.mark.parametrize("notices", [True, False])
def test_it_is_said_once_that_what_it_writes_is_kept(library, monkeypatch, capsys, notices):
    def said(word: Callable[[str], None] | None, *, of_operators: bool = False) -> list[str]:
        extension = imported(library)
        with dtr_alloc.session(budget=64 * MIB, device="cpu"):
            monkeypatch.setattr(dtr_alloc.torch.api.active(), "notices_writes", notices)
            if word:
                word("raw_square::square")
            for _ in range(10):
                x = torch.rand(256, 256) + 1
                made = extension.total([x]) if of_operators else extension.square(x)
                del made
        lines = capsys.readouterr().err.splitlines()
        return [line for line in lines if line.startswith("dtr_alloc: raw_square::")]

    try:
        assert said(None, of_operators=True) == []
        (line,) = said(None)
        assert "DTR_ALLOC_TRUST=raw_square::square" in line
        assert said(dtr_alloc.distrust) == []
        assert said(dtr_alloc.trust) == []
    finally:
        custom_operators._declared.pop("raw_square::square", None)


def test_a_compiled_function_may_call_it(library):
    torch._dynamo.reset()
    x = torch.rand(256, 256)
    with dtr_alloc.session(budget=64 * MIB, device="cpu"):
        extension = imported(library)

        def function(x: Tensor) -> Tensor:
            return torch.tanh(extension.square(torch.sin(x))) + extension.total([x])

        compiled = torch.compile(function, backend="eager")
        assert torch.equal(compiled(x), function(x))
        evicted = x + 1
        assert dtr_alloc.evict(evicted)
        assert torch.equal(compiled(evicted), function(x + 1))


def test_what_inductor_compiled_is_no_extension():
    torch._dynamo.reset()
    x = torch.rand(64, 64)
    with dtr_alloc.session(budget=64 * MIB, device="cpu"):
        compiled = torch.compile(lambda x: torch.tanh(x).sin() + 1)
        assert torch.allclose(compiled(x), torch.tanh(x).sin() + 1)
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        modules = [each for each in sys.modules.values() if isinstance(each, ModuleType)]
        libraries = [
            each for each in modules if str(vars(each).get("__file__")).startswith(cache_dir())
        ]
        kernels = [vars(each)["kernel"] for each in libraries if "kernel" in vars(each)]
        assert kernels
        assert all(kernel.__self__ in libraries for kernel in kernels)


def test_whoever_has_a_function_has_it_guarded(library):
    functions = {"square": imported(library).square}
    counts = set()
    for _ in range(2):
        with dtr_alloc.session(budget=64 * MIB, device="cpu"):
            x = torch.full((512, 512), 2.0) * 2
            assert dtr_alloc.evict(x)
            assert functions["square"](x)[0, 0] == 16
            counts.add(sys.getrefcount(functions["square"]))
        assert functions["square"].__self__.__name__ == "raw_square"
    assert len(counts) == 1


@pytest.mark.parametrize("name", ["first", "as_pybind11s", "static_first"])
def test_its_methods_find_their_arguments_in_memory(library, name):
    extension = imported(library)
    plain = vars(extension.Reader)[name]
    with dtr_alloc.session(budget=64 * MIB, device="cpu"):
        x = torch.full((512, 512), 2.0) * 2
        assert dtr_alloc.evict(x)
        assert getattr(extension.Reader(), name)(x) == 4
    assert vars(extension.Reader)[name] is plain


@pytest.mark.parametrize("wrong", [(torch.ones(2),), (torch.ones(2), None)])
def test_its_errors_are_its_own_and_nothing_stays_pinned(library, wrong):
    with dtr_alloc.session(budget=64 * MIB, device="cpu"):
        extension = imported(library)
        x = torch.ones(512, 512) * 2
        assert dtr_alloc.evict(x)
        with pytest.raises(TypeError, match="square"):
            extension.square(x, *wrong)
        assert dtr_alloc.evict(x)
        assert torch.equal(extension.square(x), x * x)
