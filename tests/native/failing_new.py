"""A job of the toy in which one operator new fails, for each that it calls.

usage: failing_new.py LIBRARY JOB STEP BYTES: the library is counted_new.cpp, compiled. Of all calls
for so many bytes and more fails the first and every STEP-th after it, each in a job of its own.
Prints a JSON object: how many jobs there were, and how many operators were refused because no
memory could be kept back.
"""

import ctypes
import json
import random
import sys

counted = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
counted.counted_news.restype = ctypes.c_uint64
counted.fail_new.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
counted.has_failed.restype = ctypes.c_bool
counted.refuse_large_news.argtypes = [ctypes.c_bool]

from native_pool import NativePool, OutOfMemory  # noqa: E402 - the core must find operator new there
from toy import CONSTANT, MUTATE, PAGE, WORDS, Toy, release  # noqa: E402

REFUSED = 3  # operators, while no memory can be kept back


class Job:
    """Operators drawn from a seed, in less memory than they fill."""

    pages = 16
    operators = 40
    refusals = ("kept back",)
    may_lack_spare = True  # memory, in every second job

    def __init__(self, seed):
        self.draw = random.Random(seed)
        heuristic = self.draw.choice(["dtr-eqclass", "marginal", "lru"])
        dealloc = self.draw.choice(["eager", "banish", "ignore", "lazy", "auto"])
        swap = self.draw.choice([0, self.pages * PAGE])
        pool = NativePool(budget=self.pages * PAGE)
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
        while len(tensors) > 2 * self.pages:
            tensors.pop(draw.randrange(2, len(tensors))).release()

    def verify(self):
        try:
            self.toy.verify()
        except OutOfMemory:  # of its own: the failing one, while nothing was kept back
            self.toy.verify()

    def run(self):
        for i in range(self.operators):
            try:
                self.operator(i)
            except OutOfMemory as error:
                if "evictable 0 bytes" in str(error):  # what cannot go fills the budget
                    continue
                if not any(words in str(error) for words in self.refusals):
                    raise
                self.refused += 1
                if self.refused == REFUSED:
                    counted.refuse_large_news(False)
            finally:
                self.verify()
        counted.refuse_large_news(False)
        self.toy.pool.set_budget(4 * self.pages * PAGE)
        for tensor in self.tensors:
            self.toy.materialize(tensor)
            assert tensor.is_right()
            tensor.release()
        self.toy.finish()


class WideJob(Job):
    """Operators of many arguments, few storages, and many results."""

    pages = 16384
    operators = 2
    refusals = ("kept back", "the allocator's own records")  # before the operator changes anything
    may_lack_spare = False

    def operator(self, i):
        made = self.toy.run("wide", *self.tensors[:2] * 20_000, results=[16] * 70_000, parameter=i)
        self.tensors.append(made.pop())
        release(*made)


def main(make_job, step, least_bytes):
    jobs = refused = 0
    ahead = 1
    while True:
        job = make_job(jobs)
        counted.refuse_large_news(job.may_lack_spare and jobs % 2 == 1)
        counted.fail_new(ahead, least_bytes)
        job.run()
        refused += job.refused
        if not counted.has_failed():
            break
        jobs += 1
        ahead += step
    print(json.dumps({"jobs": jobs, "refused": refused}))


main({"deep": Job, "wide": WideJob}[sys.argv[2]], *map(int, sys.argv[3:]))
