"""Plain CUDA graphs and memory pools: what was captured stays where it is."""

import copy

import pytest
import torch
from bits import MIB
from own_process import BACKEND, DEVICE, own_process
from torch import nn

import dtr_alloc


def captured(step):
    """A graph of what `step` queues, warmed up on a side stream as PyTorch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def make_pressure(size_bytes):
    """Fills a budget with results that must be evicted for one another."""
    base = torch.ones(2 * MIB, device=DEVICE)
    return [base * index for index in range(size_bytes // (8 * MIB))]


@own_process(cuda_only="graphs")
def test_a_captured_graph_replays_beside_evictions():
    torch.manual_seed(1)
    weight = torch.randn(1024, 1024).to(DEVICE)
    x = torch.randn(1024, 1024).to(DEVICE)
    graph, result = captured(lambda: torch.tanh(x @ weight) @ weight)
    dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 64 * MIB)
    others = []
    for _ in range(4):
        before = dtr_alloc.stats()["evictions"]
        others = make_pressure(128 * MIB)
        assert dtr_alloc.stats()["evictions"] > before
        x.copy_(torch.randn(1024, 1024))
        graph.replay()
        got = result.clone()
        assert torch.equal(got, torch.tanh(x @ weight) @ weight)
    assert all(bool((tensor == index).all()) for index, tensor in enumerate(others))


@own_process(cuda_only="graphs")
def test_a_captured_training_step_trains_as_an_eager_one():
    def model():
        torch.manual_seed(3)
        net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3))).to(DEVICE)
        return net, torch.optim.SGD(net.parameters(), lr=0.01)

    x = torch.randn(512, 256).to(DEVICE)

    def stepper(net, optimizer):
        def step():
            optimizer.zero_grad(set_to_none=False)
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager, eager_optimizer = model()
    step = stepper(eager, eager_optimizer)
    for _ in range(8):
        expected = step()
    net, optimizer = model()
    graph, loss = captured(stepper(net, optimizer))
    # Three steps to warm up; capturing queues nothing.
    for _ in range(5):
        graph.replay()
    assert torch.allclose(expected.detach(), loss.detach(), rtol=1e-5)


@own_process(cuda_only="graphs")
def test_graphed_callables_compute_the_same_bits_beside_evictions():
    torch.manual_seed(0)
    eager = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2))).to(DEVICE)
    graphed = copy.deepcopy(eager)
    sample = torch.randn(32, 64, device=DEVICE, requires_grad=True)
    call = torch.cuda.make_graphed_callables(graphed, (sample,))
    dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 64 * MIB)
    for index in range(3):
        x = torch.randn(32, 64, device=DEVICE) * index
        out, expected = call(x), eager(x)
        make_pressure(128 * MIB)
        for made in (out, expected):
            made.square().sum().backward()
        assert torch.equal(out, expected)
        for a, b in zip(graphed.parameters(), eager.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
            a.grad = b.grad = None  # the graph's are overwritten by the next replay
    assert dtr_alloc.stats()["evictions"] > 0


@own_process(cuda_only="graphs")
def test_a_graph_over_two_streams_is_captured_whole():
    x = torch.ones(64, device=DEVICE)
    side = torch.cuda.Stream()

    def forked():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = x * 3
        torch.cuda.current_stream().wait_stream(side)
        return y + z

    graph, result = captured(forked)
    x.fill_(5)
    graph.replay()
    assert result.mean().item() == 25


@own_process(cuda_only="graphs", gpu_only="random numbers in graphs")
def test_random_numbers_of_a_graph_go_on_from_replay_to_replay():
    x = torch.ones(1 << 16, device=DEVICE)
    graph, result = captured(lambda: torch.nn.functional.dropout(x, 0.5))
    graph.replay()
    first = result.clone()
    graph.replay()
    assert not torch.equal(first, result)


@own_process(cuda_only="graphs", gpu_only="random numbers in graphs")
def test_random_numbers_of_a_graph_are_the_same_while_others_are_drawn_again():
    x = torch.ones(1 << 16, device=DEVICE)
    made = [torch.nn.functional.dropout(x, 0.5), torch.randn(x.shape, device=DEVICE)]
    kept = [tensor.clone() for tensor in made]
    # Not x: replays may overwrite what a graph reads, so nothing is computed again from that.
    read = torch.ones(1 << 16, device=DEVICE)
    graph, result = captured(lambda: torch.nn.functional.dropout(read, 0.5))

    def numbers(evicts):
        torch.manual_seed(4)
        found = []
        for _ in range(3):
            graph.replay()
            found.append(result.clone())
            for tensor, right in zip(made, kept, strict=True):
                if evicts:
                    assert dtr_alloc.evict(tensor), dtr_alloc.why_kept(tensor)
                assert torch.equal(tensor, right)
        return found

    expected = numbers(evicts=False)
    got = numbers(evicts=True)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@own_process(cuda_only="graphs")
def test_a_graph_that_is_gone_gives_its_memory_back():
    x = torch.ones(4 * MIB, device=DEVICE)
    before = dtr_alloc.stats()["allocated_bytes"]
    graph, result = captured(lambda: (x * 2) + 1)
    graph.replay()
    torch.cuda.synchronize()
    del graph, result
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert dtr_alloc.stats()["allocated_bytes"] < before + MIB


@own_process(cuda_only="graphs")
def test_graph_trees_record_one_graph_after_another_also_after_replays():
    """What the user keeps between them, and evicted inputs, included."""
    from torch._inductor import cudagraph_trees

    functions = {
        "f": lambda x: (torch.tanh(x) * 2, x.cos()),
        "g": lambda y: (y - 0.5).relu(),
        "h": lambda y, z: (torch.sigmoid(y) + z, y - 1),
    }
    compiled = {
        name: torch.compile(function, backend="cudagraphs", dynamic=False)
        for name, function in functions.items()
    }

    def step(of, x, path):
        a, c = of["f"](x)
        if path == "deep":
            b = of["g"](a)
            q, r = of["h"](a, b)
            del b, q
            return a, of["g"](r)
        if path == "short":
            return a, of["g"](c)
        return a, *of["h"](a, c)

    kept = []
    with torch.no_grad():
        for path in ("deep", "short", "deep", "short", "wide", "deep", "wide", "wide", "deep"):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(64, 64).to(DEVICE) * 3
            assert dtr_alloc.evict(x)
            expected = step(functions, x, path)
            dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 24 * MIB)
            make_pressure(64 * MIB)
            made = step(compiled, x, path)
            assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
            kept.append((made[0] * 2, expected[0] * 2))
    assert all(torch.equal(a, b) for a, b in kept)
    assert dtr_alloc.stats()["evictions"] > 0
    trees = cudagraph_trees.get_manager(0, create_if_none_exists=False)
    assert trees.debug_checkpointing_counter > 0
    pool = trees.cuda_graphs_thread_pool
    (segment, *_) = (
        each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] == pool
    )
    assert segment["total_size"] > 0
    assert torch.cuda.memory.memory_snapshot(pool)[0] == segment


@pytest.mark.parametrize("how", [{"backend": "cudagraphs"}, {"mode": "reduce-overhead"}], ids=str)
@own_process(cuda_only="graphs")
def test_graph_trees_train_regions_to_the_same_bits_under_a_budget(how):
    if "mode" in how:
        own = pytest.importorskip("torch.utils._triton", reason="triton is not here")
        if BACKEND == "emulated":  # no graph has a kernel of Triton's, which asks for a device
            own.triton_hash_with_backend = lambda: "emulated"

    def layers():
        torch.manual_seed(3)
        linear = [nn.Linear(64, 64, bias=False).to(DEVICE) for _ in range(8)]
        made = [nn.Sequential(*linear[i : i + 2]) for i in (0, 2, 4, 6)]
        parameters = [each for layer in made for each in layer.parameters()]
        return made, parameters, torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    eager, eager_parameters, eager_optimizer = layers()
    plain, parameters, optimizer = layers()
    graphed = [torch.compile(layer, dynamic=False, **how) for layer in plain]
    for index in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(4096, 64).to(DEVICE)
        for of, own_optimizer in ((graphed, optimizer), (eager, eager_optimizer)):
            y = x
            own_optimizer.zero_grad()
            for layer in of:
                y = torch.tanh(layer(y)) * 1.5
            if index > 3:
                make_pressure(64 * MIB)
            y.square().mean().backward()
            own_optimizer.step()
        if index == 3:
            dtr_alloc.set_budget(torch.cuda.memory_reserved() + 8 * MIB)
        assert all(torch.equal(a, b) for a, b in zip(parameters, eager_parameters, strict=True))
    assert dtr_alloc.stats()["rematerializations"] > 0
    from torch._inductor import cudagraph_trees

    trees = cudagraph_trees.get_manager(0, create_if_none_exists=False)
    assert trees.new_graph_id().id >= 8  # forward and backward, of each


@own_process(cuda_only="graphs")
def test_a_memory_pool_that_nobody_has_is_named():
    torch.ones(1, device=DEVICE)
    for ask in (
        lambda: torch._C._cuda_getCheckpointState(0, (7, 7)),
        lambda: torch._C._cuda_checkPoolLiveAllocations(0, (7, 7), set()),
    ):
        with pytest.raises(RuntimeError, match=r"cuda:0 has no private memory pool \(7, 7\)"):
            ask()


@own_process(cuda_only="memory pools")
def test_a_memory_pool_works_or_is_refused_in_words():
    try:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = torch.full((MIB,), 2.0, device=DEVICE)
    except RuntimeError as error:
        assert "dtr_alloc" in str(error)  # noqa: PT017
        assert bool((torch.ones(MIB, device=DEVICE) == 1).all()), "and the process goes on"
        return
    evicted = torch.ones(MIB, device=DEVICE) * 3
    assert dtr_alloc.evict(evicted)
    with torch.cuda.use_mem_pool(pool):
        assert bool((evicted + inside == 5).all())
    assert dtr_alloc.evict(evicted), "its memory is not of the pool"
    dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 64 * MIB)
    make_pressure(128 * MIB)
    assert bool((inside == 2).all())
    del inside, pool
