"""Operators run while the interpreter ends, also those that the session has not met before."""

import pytest
from harness import python

SETUP = """
import atexit, builtins, threading

# Registered first, and so called last: PyTorch's own handlers have run by then.
@atexit.register
def call_at_exit():
    at_exit()

import torch, dtr_alloc

def evicted():
    x = torch.ones(1000) * 2
    assert dtr_alloc.evict(x)
    return x

dtr_alloc.enable("64MiB", device="cpu")
"""

IN_A_HANDLER = """
x = evicted()

def at_exit():
    y = torch.sinh(x) + torch.erf(x)
    y.tan_()
    print(y.sum().item(), x.sum().item(), flush=True)
"""

IN_A_DAEMON_THREAD = """
may_begin, has_ended = threading.Event(), threading.Event()
x = evicted()

def compute():
    may_begin.wait()
    try:
        y = torch.sinh(x) + torch.erf(x)
        y.tan_()
        print(y.sum().item(), x.sum().item(), flush=True)
        del y  # PyTorch takes the GIL back then, and aborts where a thread is ended by that
    finally:
        has_ended.set()

def at_exit():
    may_begin.set()
    has_ended.wait()

threading.Thread(target=compute, daemon=True).start()
"""

IN_DEL = """
class Late:
    def __init__(self):
        self.x, self.print = evicted(), print

    def __del__(self):
        y = self.x.sinh() + self.x.erf()
        y.view(10, 100).t().tan_()
        self.print(y.sum().item(), self.x.sum().item(), flush=True)

def at_exit():
    pass

builtins.late = Late()
"""


@pytest.mark.parametrize(
    "code", [IN_A_HANDLER, IN_A_DAEMON_THREAD, IN_DEL], ids=["atexit", "daemon_thread", "del"]
)
def test_operators_run_while_the_interpreter_ends(code):
    done = python("-c", SETUP + code)
    assert done.stderr == ""
    y, x = map(float, done.stdout.split())
    assert (round(y), x) == (11056, 2000)


# A backward pass that fails leaves the gradients that it did not get to in a queue of the thread,
# which goes after the interpreter. The indices that this one depends on are NumPy's memory.
OUTLIVED = """
import numpy

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError

x = torch.ones(100, 1000, requires_grad=True)
made_before, fails = x.exp(), Fails.apply(x)
loss = (made_before * torch.ones(1000)[numpy.arange(1000)] + fails).sum()
try:
    loss.backward()
except ValueError:
    at_exit = int
"""


def test_a_gradient_may_outlive_the_interpreter():
    assert python("-c", SETUP + OUTLIVED).stderr == ""
