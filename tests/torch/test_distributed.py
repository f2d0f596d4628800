"""Collectives of torch.distributed, whose work goes on after their operator ended. Each test is two
processes on gloo."""

import json
import multiprocessing
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import call, python

import dtr_alloc
from dtr_alloc.torch import ranks

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch has no gloo")

BEGIN = """
import atexit, contextlib, hashlib, json, sys, time
import torch, torch.distributed as dist
import dtr_alloc
from dtr_alloc.torch import ranks

ranks._PATIENCE_SECONDS = 600  # the machine may be busy
rank, file, budget = int(sys.argv[1]), sys.argv[2], sys.argv[3]
COUNT = 1 << 18
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
at_end = contextlib.ExitStack()
atexit.register(at_end.close)  # the session registers later, so its handler is called earlier
if budget != "none":
    dtr_alloc.enable(budget, device="cpu", thrash="off")

def made(value):
    return torch.full((COUNT,), float(value)) * 2

def crowd():
    # What could be evicted is, and what could be moved.
    for tensor in list(kept):
        dtr_alloc.evict(tensor)
    dtr_alloc.compact()

kept = []
"""
END = """
if budget != "none":
    dtr_alloc.check_invariants()
dist.destroy_process_group()
"""


def run(
    tmp_path: Path, script: str, budget: str = "64MiB", statuses: tuple[int, int] = (0, 0)
) -> list[str]:
    """What each rank prints; statuses are those with which they are to end."""
    file = tmp_path / f"init-{budget}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + textwrap.dedent(script) + END, str(rank), file, budget],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = []
    for of, status in zip(ranks, statuses, strict=True):
        output, error = of.communicate()
        assert of.returncode == status, error
        assert status or "dtr_alloc" not in error, "PyTorch's own operators are known"
        outputs.append(output.strip())
    return outputs


COLLECTIVES = {
    "what is reduced is not computed again": """
        for i in range(10):
            hole = torch.empty(COUNT)
            x = made(rank + i)
            before = x * 3
            kept[:] = [x, before]
            del hole
            work = dist.all_reduce(x, async_op=True)
            crowd()
            work.wait()
            after = x + 1
            kept[:] = [x, before, after]
            crowd()
            assert (x == 2 * (2 * i + 1)).all()
            assert (before == 6 * (rank + i)).all()
            assert (after == 2 * (2 * i + 1) + 1).all()
        assert dtr_alloc.stats()["evictions"] > 0
        """,
    "what is sent stays until it is received": """
        for i in range(10):
            if rank == 0:
                x = made(i)
                kept[:] = [x]
                work = dist.isend(x, 1)
                crowd()
                kept[:] = [made(7) for _ in range(4)]
            else:
                x = torch.empty(COUNT)
                kept[:] = [x]
                work = dist.irecv(x, 0)
                crowd()
            work.wait()
            assert (x == 2 * i).all()
        """,
    "what is gathered replaces what was there": """
        x = made(rank + 1)
        parts = [made(9), made(9)]
        before = parts[0] + parts[1]
        kept[:] = [x, before, *parts]
        dist.all_gather(parts, x)
        crowd()
        assert (parts[0] == 2).all() and (parts[1] == 4).all()
        assert (before == 36).all()
        whole = torch.empty(2 * COUNT)
        dist.all_gather_into_tensor(whole, x)
        assert (whole.view(2, -1) == torch.tensor([[2.0], [4.0]])).all()
        """,
    "what is broadcast or scattered replaces what was there": """
        x, parts = made(rank + 1), made(rank + 1)
        out = made(9)[: COUNT // 2]
        before = [x * 3, out * 3]
        kept[:] = [x, parts, out, *before]
        dist.broadcast(x, 1)
        dist.reduce_scatter_tensor(out, parts)
        after = [x + 1, out + 1]
        kept[:] = [x, parts, out, *before, *after]
        crowd()
        assert (x == 4).all() and (out == 6).all() and (parts == 2 * (rank + 1)).all()
        assert (before[0] == 6 * (rank + 1)).all() and (before[1] == 54).all()
        assert (after[0] == 5).all() and (after[1] == 7).all()
        """,
    "functional collectives": """
        import torch.distributed._functional_collectives as functional
        x = made(rank + 1)
        summed = functional.all_reduce(x, "sum", list(range(2)))
        kept[:] = [x]
        crowd()
        result = summed + 1
        kept[:] = [result, x]
        crowd()
        assert (result == 7).all()
        assert (x == 2 * (rank + 1)).all()
        """,
}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_tensors_that_a_collective_uses_have_their_values_then_and_later(tmp_path, collective):
    run(tmp_path, COLLECTIVES[collective])


TRAINING = """
net = torch.nn.Sequential(*[
    layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())
])
{wrap}
optimizer = torch.optim.AdamW(net.parameters())
for step in range(4):
    x = torch.randn(2, 512, 256)[rank]
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
bits = hashlib.sha256()
for parameter in net.parameters():
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    bits.update(local.detach().numpy().tobytes())
evictions = 0 if budget == "none" else dtr_alloc.stats()["evictions"]
print(json.dumps([bits.hexdigest(), evictions]))
"""
WRAPS = {
    "data parallel": """
net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.3)
""",
    "fully sharded": """
from torch.distributed.fsdp import fully_shard
mesh = dist.init_device_mesh("cpu", (2,))
for layer in net[::2]:
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
""",
    "tensor parallel": """
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module
)
plan = {str(i): ColwiseParallel() if i % 4 == 0 else RowwiseParallel() for i in range(0, 12, 2)}
parallelize_module(net, dist.init_device_mesh("cpu", (2,)), plan)
""",
}


@pytest.mark.parametrize(
    "wrap",
    ["data parallel", *(pytest.param(name, marks=pytest.mark.long) for name in [*WRAPS][1:])],
)
def test_training_has_the_same_bits(tmp_path, wrap):
    script = TRAINING.replace("{wrap}", WRAPS[wrap])
    plain = [json.loads(line) for line in run(tmp_path, script, "none")]
    held = [json.loads(line) for line in run(tmp_path, script, "9MiB")]
    assert [bits for bits, _ in held] == [bits for bits, _ in plain]
    assert all(evictions > 0 for _, evictions in held)


ENDS = """
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
x = made(rank)

def fail():
    torch.empty(1 << 28)

if rank == 1:
{end}
try:
    {collective}
except torch.OutOfMemoryError as error:
    print(error)
"""
UNCAUGHT = "fail()"
BEHIND_FINALLY = """
try:
    fail()
finally:
    dtr_alloc.disable()
"""
RAISED_AGAIN = """
try:
    fail()
except torch.OutOfMemoryError:
    raise
"""
AS_ANOTHER = """
try:
    fail()
except torch.OutOfMemoryError as error:
    raise RuntimeError("no batch fits") from error
"""


@pytest.mark.parametrize(
    ("end", "collective"),
    [
        (UNCAUGHT, "dist.all_reduce(x)"),
        (BEHIND_FINALLY, "dist.all_reduce(x, async_op=True).wait()"),
        pytest.param(RAISED_AGAIN, "net(x[:16]).sum().backward()", marks=pytest.mark.long),
        pytest.param(AS_ANOTHER, "dist.all_reduce(x)", marks=pytest.mark.long),
    ],
    ids=["uncaught", "behind finally", "raised again", "as another error"],
)
def test_a_rank_that_ends_out_of_memory_has_others_raise_in_their_collective(
    tmp_path, end, collective
):
    script = ENDS.format(end=textwrap.indent(end, "    "), collective=collective)
    told, _ = run(tmp_path, script, statuses=(0, 1))
    assert "rank 1 of 2, whose budget is 64.00 MiB, is out of memory and ends" in told
    assert f"requested 1.0 GiB ({4 << 28} bytes)" in told


def test_a_rank_learns_of_groups_that_are_made_later(tmp_path):
    script = """
        dist.all_reduce(made(0))
        dist.destroy_process_group()
        method = "file://" + file + "again"
        if rank == 1:
            dtr_alloc.disable()
            dtr_alloc.enable("64MiB", device="cpu", thrash="off")
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
        if rank == 1:
            torch.empty(1 << 28)
        try:
            dist.all_reduce(made(0))
        except torch.OutOfMemoryError as error:
            print(error)
        """
    told, _ = run(tmp_path, script, statuses=(0, 1))
    assert "rank 1 of 2, whose budget is 64.00 MiB, is out of memory and ends" in told


# The groups are destroyed after dtr_alloc's handler of the exit, which must see them. If they are
# left to the interpreter, PyTorch ends some processes with "terminate called without an active
# exception": a thread of gloo (ProcessGroupGloo::runLoop) still releases the tensors of the last
# collective, and asks for the GIL while the interpreter ends.
EXIT = "dist.all_reduce(x); at_end.callback(dist.destroy_process_group); sys.exit(0)"
HANDLED = {
    "it goes on": "",
    "it ends well": EXIT,
    "a debugger saw it": f"""
        sys.last_value, sys.last_traceback = error, error.__traceback__
        {EXIT}
""",
    "it leaves a group": "dist.destroy_process_group(subgroup)",
    "another error": f"""
        try:
            raise ValueError("the batch")
        except ValueError:
            {EXIT}
""",
}


@pytest.mark.parametrize("then", HANDLED)
def test_an_error_that_a_rank_handles_is_its_own(tmp_path, then):
    done = run(
        tmp_path,
        f"""
x = made(rank)
subgroup = dist.new_group([0, 1])
if rank == 1:
    try:
        torch.empty(1 << 28)
    except torch.OutOfMemoryError as error:
        {HANDLED[then].strip()}
        pass
dist.all_reduce(x)
print((x == 2).all().item(), dtr_alloc.stats()["out_of_memory_errors"])
if rank == 0:
    time.sleep(1)  # it looks meanwhile
""",
    )
    goes_on = "exit" not in HANDLED[then]
    assert done == ["True 0", "True 1" if goes_on else ""]


def rank_of_processes(rank: int, file: str) -> None:
    ranks._PATIENCE_SECONDS = 600
    dtr_alloc.enable("64MiB", device="cpu")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    if rank == 1:
        torch.empty(1 << 28)
    try:
        dist.all_reduce(torch.ones(8))
    except torch.OutOfMemoryError as error:
        print(error, flush=True)


def start_processes(file: str) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=rank_of_processes, args=(rank, file)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()


@pytest.mark.long
def test_a_rank_that_is_a_process_of_multiprocessing_tells_the_others(tmp_path):
    told = call(start_processes, tmp_path / "init").stdout
    assert "rank 1 of 2, whose budget is 64.00 MiB, is out of memory and ends" in told


@pytest.mark.parametrize("command", [["-m"], ["-m", "dtr_alloc.cli", "run", "-m"]])
def test_what_starts_the_ranks_has_no_budget_and_none_of_their_files(tmp_path, command):
    (tmp_path / "job.py").write_text("import torch\n(torch.ones(1000) * 2).sum().item()\n")
    files = {"stats": "stats-{rank}.json", "costs": "costs-{rank}.json", "log": "job-{rank}.log"}
    line = [*command, "torch.distributed.run", "--nproc-per-node", "2", "job.py"]
    assert "dtr_alloc" not in python(*line, cwd=tmp_path, budget="64MiB", **files).stderr
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"job.py"} | {name.format(rank=i) for name in files.values() for i in (0, 1)}
