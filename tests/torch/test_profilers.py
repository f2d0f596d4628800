"""Profilers and execution traces observe operators on tensors that are evicted."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from harness import checked_session, evicted
from native_fixtures import on_threads
from torch._C import _autograd
from torch.profiler import ExecutionTraceObserver, ProfilerActivity

import dtr_alloc

Profiler = Callable[[], AbstractContextManager[Any]]


def with_kineto(**settings: Any) -> Profiler:
    return lambda: torch.profiler.profile(activities=[ProfilerActivity.CPU], **settings)


PROFILERS = {
    "shapes": with_kineto(record_shapes=True),
    "memory": with_kineto(record_shapes=True, profile_memory=True),
    "stack": with_kineto(record_shapes=True, profile_memory=True, with_stack=True),
    "autograd": lambda: torch.autograd.profiler.profile(record_shapes=True),
}


@pytest.fixture(params=PROFILERS)
def profiler(request):
    return PROFILERS[request.param]


@pytest.fixture(autouse=True)
def nothing_fails_in_a_callback(capfd):
    yield
    assert "Exception" not in capfd.readouterr().err


def shapes(profile: Any, name: str) -> list[list[list[int]]]:
    """The shapes of the inputs of the operators of a name."""
    events = profile.function_events if hasattr(profile, "function_events") else profile.events()
    return [event.input_shapes for event in events if event.name == name]


def evictable() -> torch.Tensor:
    return torch.ones(30, 40) * 2


def test_a_profile_has_operators_on_evicted_tensors_with_their_shapes(profiler):
    with checked_session():
        tensor, other = evicted(evictable()), evicted(evictable())
        with profiler() as profile:
            view = tensor.view(40, 30)
            assert not dtr_alloc.is_resident(tensor)
            result = view.exp() + other.view(40, 30)
        assert shapes(profile, "aten::view") == [[[30, 40], []]] * 2
        assert shapes(profile, "aten::exp") == [[[40, 30]]]
        assert torch.equal(result, torch.full((40, 30), 2.0).exp() + 2)


def test_a_profile_has_the_backward_pass_through_evicted_tensors(profiler):
    with checked_session():
        weight = evictable().requires_grad_()
        hidden = weight.exp()
        loss = (hidden * hidden).sum()
        evicted(hidden)
        with profiler() as profile:
            loss.backward()
        assert [[30, 40], [30, 40]] in shapes(profile, "aten::mul")
        assert weight.grad is not None


@pytest.mark.skipif(not torch.profiler.itt.is_available(), reason="PyTorch was built without ITT")
def test_ranges_of_itt_are_made_around_operators_on_evicted_tensors():
    with checked_session():
        tensor, hidden = evicted(evictable()), evictable().requires_grad_().exp()
        loss = hidden.square().sum()
        evicted(hidden)
        with torch.autograd.profiler.emit_itt(record_shapes=True):
            view = tensor.view(40, 30)
            assert not dtr_alloc.is_resident(tensor)
            loss.backward()
        assert torch.equal(view, torch.full((40, 30), 2.0))


def test_tensors_are_evicted_and_come_back_on_another_thread_while_a_profiler_is_on(profiler):
    def turn_over() -> None:
        evicted(tensor)
        dtr_alloc.materialize(tensor)
        evicted(tensor)

    with checked_session():
        tensor = evictable()
        with profiler() as profile:
            on_threads(turn_over)
            tensor.view(-1)
        assert shapes(profile, "aten::view") == [[[30, 40], []]]


def test_the_profiler_of_python_reads_gradients_and_parameters_that_are_evicted():
    with dtr_alloc.session("unlimited", device="cpu", swap="1MiB"):
        model = torch.nn.Linear(40, 30, bias=False)
        model.weight = torch.nn.Parameter(evictable())
        model(torch.ones(5, 40)).sum().backward()
        assert model.weight.grad is not None
        evicted(model.weight.grad)
        evicted(model.weight)
        with PROFILERS["stack"]() as profile:
            model(torch.ones(5, 40))
        assert any("nn.Module: Linear" in event.name for event in profile.events())


def test_evicted_tensors_are_told_apart():
    """As the categories of the memory timeline are found by storages."""
    with checked_session():
        first, second = evicted(evictable()), evicted(evictable())
        with PROFILERS["stack"]() as profile:
            first.view(-1)
            second.view(-1)
            second.view(-1)
        nodes = profile.profiler.kineto_results.experimental_event_tree()
        ids = []
        while nodes:
            node = nodes.pop(0)
            nodes += node.children
            if node.name == "aten::view":
                ids.append(node.typed[1].inputs[0].id)
        assert len(ids) == 3
        assert len(set(ids)) == 2


def test_an_execution_trace_has_operators_on_evicted_tensors(tmp_path):
    path = tmp_path / "trace.json"
    observer = ExecutionTraceObserver().register_callback(str(path))
    with checked_session():
        tensor = evicted(evictable())
        observer.start()
        result = tensor.view(40, 30).exp()
        evicted(result)
        result.view(-1)
        observer.stop()
    observer.unregister_callback()
    nodes = json.loads(path.read_text())["nodes"]
    names = [node["name"] for node in nodes]
    assert names.count("aten::view") == 2
    assert "aten::exp" in names


def test_a_profiler_that_is_on_before_the_session(profiler):
    with profiler() as profile, checked_session():
        evicted(evictable()).view(-1)
        tensor = evicted(evictable())
        tensor.view(-1)
    assert len(shapes(profile, "aten::view")) == 2


def test_functions_that_begin_a_profile_are_as_before_once_the_session_has_ended():
    begin: Any = _autograd._enable_profiler
    before = begin.__self__
    with checked_session():
        assert begin.__self__ is not before
    assert begin.__self__ is before
