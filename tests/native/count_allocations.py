"""What the core allocates with operator new when a tensor is made, with and without a search.

usage: count_allocations.py LIBRARY HEURISTIC ROOM: the library is counted_new.cpp, compiled. Prints
a JSON list: for each tensor of the second half of a job searches, window searches, evictions and
calls of operator new.
"""

import ctypes
import json
import random
import sys

counted = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
counted.counted_news.restype = ctypes.c_uint64

from dtr_alloc._lab import lib as toys  # noqa: E402

from bench.search import SimulatedJob  # noqa: E402 - the core must find operator new there

PAGE = 4096
CANDIDATES = 150


class CountingJob(SimulatedJob):
    seen: list[list[int]]

    def counts(self):
        stats = self.stats()
        counts = [stats.searches, stats.window_searches, stats.evictions]
        return [*map(int, counts), counted.counted_news()]

    def tensor(self, size_bytes):
        before = self.counts()
        made = self._tensor(size_bytes)
        if self.measuring:
            self.seen.append([b - a for a, b in zip(before, self.counts(), strict=True)])
        return made


def main(heuristic, room):
    rng = random.Random(1)
    job = CountingJob(heuristic, CANDIDATES * 2 * PAGE, 0, fixed=True, room=room)
    job.seen = []
    tensors = [job.tensor(PAGE)]
    for i in range(12 * CANDIDATES):
        job.measuring = i > 6 * CANDIDATES
        tensors.append(job.run(rng.randint(1, 3) * PAGE, tensors[-1]))
        if len(tensors) > 2 * CANDIDATES:
            toys.dtr_toy_release(tensors.pop(rng.randrange(len(tensors) - 1)))
    job.close(tensors)
    print(json.dumps(job.seen))


main(sys.argv[2], int(sys.argv[3]))
