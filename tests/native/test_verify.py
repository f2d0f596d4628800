"""Whether a rematerialization gives the bytes that were evicted (native/graph/verifier.h).

Needs the native build. The fixture checks at the end that nothing was left behind.
"""

from __future__ import annotations

import pytest
from native_pool import WrongState
from toy import WORDS, Toy, line


class Impure(Toy):
    """An operator that is called impure gives another result each time from some time on."""

    is_impure = False

    def _execute(self, operator, tensors):
        if self.is_impure and operator.name == "impure":
            self.count_of_runs = getattr(self, "count_of_runs", 0) + 1
            operator = operator._replace(parameter=self.count_of_runs)
        return super()._execute(operator, tensors)


def test_what_comes_back_as_it_was_is_compared_and_let_be(make_toy):
    toy = make_toy(verify=1)
    _, x, y = line(toy, "f", "g")
    assert toy.evict(x)
    assert toy.evict(y)
    assert toy.content(y) == y.expected()
    assert toy.stats().verified == 2


def test_a_result_that_differs_fails_the_rematerialization_and_stays_evicted(make_toy):
    toy = make_toy(kind=Impure, verify=1)
    _, x = line(toy, "impure")
    toy.evict(x)
    toy.is_impure = True
    with pytest.raises(WrongState, match=r"op \d+ .* of the 4096 bytes of storage \d+ .* offset 0"):
        toy.materialize(x)
    toy.verify()
    assert not toy.resident(x)
    toy.is_impure = False
    assert toy.content(x) == x.expected()


def test_only_each_nth_eviction_keeps_a_copy(make_toy):
    toy = make_toy(verify=3)
    source = toy.unseen(WORDS)
    results = [toy.one("f", source, words=WORDS, parameter=i) for i in range(7)]
    for result in results:
        assert toy.evict(result)
    for result in results:
        toy.materialize(result)
        result.release()
    assert toy.stats().verified == 2


def test_a_copy_goes_with_its_storage(make_toy):
    toy = make_toy(verify=1)
    source, x = line(toy, "f")
    toy.evict(x)
    x.release()
    source.release()
    assert toy.stats().verified == 0
