"""A job of the toy in which one operator new fails, for each that it calls.

usage: failing_new.py LIBRARY STEP: the library is counted_new.cpp, compiled. Fails the first
operator new and every STEP-th after it, each in a job of its own. Prints a JSON object: how many
jobs there were, and how many operators were refused because no memory could be kept back.
"""

import ctypes
import json
import random
import sys

counted = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
counted.counted_news.restype = ctypes.c_uint64
counted.fail_new.argtypes = [ctypes.c_uint64]
counted.refuse_large_news.argtypes = [ctypes.c_bool]

from native_pool import NativePool, OutOfMemory  # noqa: E402 - the core must find operator new there
from toy import CONSTANT, MUTATE, PAGE, WORDS, Toy  # noqa: E402

PAGES = 16
OPERATORS = 40
REFUSED = 3  # operators, while no memory can be kept back


class Job:
    """Operators drawn from a seed, in less memory than they fill."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        heuristic = self.draw.choice(["dtr-eqclass", "marginal", "lru"])
        dealloc = self.draw.choice(["eager", "banish", "ignore", "lazy"])
        swap = self.draw.choice([0, PAGES * PAGE])
        pool = NativePool(budget=PAGES * PAGE)
        self.toy = Toy(pool, heuristic=heuristic, dealloc=dealloc, swap_bytes=swap)
        self.tensors = [self.toy.unseen(WORDS), self.toy.unseen(WORDS, 1)]
        self.tensors.append(self.toy.one("first", *self.tensors))
        self.refused = 0

    def operator(self, i):
        draw, tensors = self.draw, self.tensors
        kind, x, y = draw.random(), draw.choice(tensors), draw.choice(tensors)
        if kind < 0.15:
            self.toy.run("update_", (x, MUTATE), y, parameter=i)
        elif kind < 0.3:
            tensors += self.toy.run("two", x, results=[WORDS, WORDS], parameter=i)
        elif kind < 0.4:
            self.toy.pin(x)
            self.toy.materialize(x)
            self.toy.unpin(x)
        else:
            tensors.append(self.toy.one("f", x, (y, CONSTANT if kind > 0.98 else 0), parameter=i))
        while len(tensors) > 2 * PAGES:
            tensors.pop(draw.randrange(2, len(tensors))).release()

    def verify(self):
        try:
            self.toy.verify()
        except OutOfMemory:  # of its own: the failing one, while nothing was kept back
            self.toy.verify()

    def run(self):
        for i in range(OPERATORS):
            try:
                self.operator(i)
            except OutOfMemory as error:
                if "needs a budget of" in str(error):  # constants fill it
                    continue
                if "kept back" not in str(error):
                    raise
                self.refused += 1
                if self.refused == REFUSED:
                    counted.refuse_large_news(False)
            finally:
                self.verify()
        counted.refuse_large_news(False)
        self.toy.pool.set_budget(4 * PAGES * PAGE)
        for tensor in self.tensors:
            self.toy.materialize(tensor)
            assert tensor.is_right()
            tensor.release()
        self.toy.finish()


def main(step):
    jobs = refused = 0
    ahead = 1
    while True:
        job = Job(jobs)
        counted.refuse_large_news(jobs % 2 == 1)
        before = counted.counted_news()
        counted.fail_new(ahead)
        job.run()
        refused += job.refused
        if counted.counted_news() - before < ahead:
            break
        jobs += 1
        ahead += step
    print(json.dumps({"jobs": jobs, "refused": refused}))


main(int(sys.argv[2]))
