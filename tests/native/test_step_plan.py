"""Where a step of a plan begins is heard in the calls of a job (native/run/step_plan.h).

Needs a C++ compiler.
"""

from random import Random

import pytest
from native_fixtures import ROOT, load_cpp


@pytest.fixture(scope="module")
def begins(tmp_path_factory):
    path = tmp_path_factory.mktemp("step_plan") / "libstepplan.so"
    sources = [ROOT / "tests/native/step_plan.cpp", ROOT / "native/run/step_plan.cpp"]
    declarations = "void begins(uint64_t *, uint64_t, uint64_t *, uint64_t, uint8_t *);"
    ffi, lib = load_cpp(sources, path, declarations)

    def found(plan: list[int], job: list[int]) -> list[bool]:
        is_beginning = ffi.new("uint8_t[]", len(job))
        numbers = [ffi.new("uint64_t[]", [8 * call for call in calls]) for calls in (plan, job)]
        lib.begins(numbers[0], len(plan), numbers[1], len(job), is_beginning)
        return [bool(begins) for begins in is_beginning]

    return found


def looked_for(plan: list[int], job: list[int]) -> list[bool]:
    """The same by looking at all calls before each, as far as they tell a step's end from all else
    in it."""
    count = len(plan)
    rounds = [plan[end:] + plan[:end] for end in range(1, count)]
    needed = next(
        n for n in range(1, count + 1) if n == count or all(r[-n:] != plan[-n:] for r in rounds)
    )
    at, heard, found = None, [], []
    for call in job:
        if at is not None and plan[at] == call:
            at = (at + 1) % count
        else:
            heard = [call] if at is not None else [*heard, call]
            at = 0 if heard[-needed:] == plan[-needed:] else None
        found.append(at == 0)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_where_calls_repeat_a_step_begins_where_looking_back_finds_it(begins, seed):
    random = Random(seed)
    plan = random.choices(range(1, 4), k=random.randint(1, 12))
    job = []
    while len(job) < 200:
        job += (
            plan if random.random() < 0.6 else random.choices(range(1, 4), k=random.randint(1, 9))
        )
        if random.random() < 0.3:
            del job[-random.randint(1, 5) :]
    assert begins(plan, job) == looked_for(plan, job)
