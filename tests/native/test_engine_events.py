"""What the engine adds to a trace: evictions, returns, moves, operators."""

from contextlib import suppress

import pytest
from native_fixtures import on_threads
from toy import WORDS, Failure, fail, never, op_key, release

from dtr_alloc.traces.trace import Kind


def name_of(key):
    return {op_key(name): name for name in ("f", "g")}.get(key, "?")


def marks(trace):
    kinds = (Kind.EVICT, Kind.REMATERIALIZE, Kind.MOVE_FROM, Kind.MOVE_TO)
    return [(k, a) for k, a in zip(trace.kind, trace.address, strict=True) if k in kinds]


def test_a_content_that_moves_is_evicted_and_comes_back_is_followed(toy, record):
    source = toy.unseen(WORDS)
    recorded = record(toy.pool, name_of=name_of)
    x = toy.one("f", source)
    places = [x.address]
    assert toy.move(x)
    places.append(x.address)
    assert toy.evict(x)
    toy.materialize(x)
    places.append(x.address)
    trace = recorded.stop()
    assert marks(trace) == [
        *((Kind.MOVE_FROM, places[0]), (Kind.MOVE_TO, places[1]), (Kind.EVICT, places[1])),
        (Kind.REMATERIALIZE, places[2]),
    ]
    rows = list(zip(trace.kind, trace.address, strict=True))
    begun = rows.index((Kind.ALLOCATE, places[0]))
    assert trace.names[trace.name[begun]] == "f"
    ends = dict(zip(trace.lifetimes().start, trace.lifetimes().end, strict=True))
    assert trace.kind[ends[begun]] == Kind.FREE
    assert trace.address[ends[begun]] == places[1]


def test_an_operator_is_named_on_whatever_thread_its_frame_is_used(toy, record):
    source = toy.unseen(WORDS)
    recorded = record(toy.pool, name_of=name_of)
    frame = toy.frame
    made = [toy.one("f", source)]

    def go_on():
        toy.frame = frame
        made.append(toy.one("g", source))

    on_threads(go_on)
    named = {tensor.address: name for tensor, name in zip(made, "fg", strict=True)}
    release(source, *made)
    trace = recorded.stop()
    for kind, place, name in zip(trace.kind, trace.address, trace.name, strict=True):
        if kind == Kind.ALLOCATE and place in named:
            assert trace.names[name] == named.pop(place)
    assert named == {}


@pytest.mark.parametrize("fails", [False, True])
def test_an_operator_goes_on_under_its_name_when_one_inside_of_it_is_over(toy, record, fails):
    source = toy.unseen(WORDS)
    recorded = record(toy.pool, name_of=name_of)
    frames = []
    on_threads(lambda: frames.append(toy.frame))
    made = []

    def run_another(_):
        outer, toy.frame = toy.frame, frames[0]
        with suppress(Failure):
            toy.one("g", source, words=WORDS, fails=fail if fails else never).release()
        toy.frame = outer
        made.append(toy.unseen(WORDS))

    result = toy.one("f", source, words=WORDS, fails=run_another)
    made.append(toy.unseen(WORDS))
    places = [tensor.address for tensor in made]
    release(source, result, *made)
    trace = recorded.stop()
    names = {
        place: trace.names[name]
        for kind, place, name in zip(trace.kind, trace.address, trace.name, strict=True)
        if kind == Kind.ALLOCATE
    }
    assert [names[place] for place in places] == ["f", ""]


def test_what_the_job_drops_is_free_without_an_eviction(toy, record):
    source = toy.unseen(WORDS)
    recorded = record(toy.pool)
    x = toy.one("f", source)
    y = toy.one("g", x)
    x.release()  # y could be computed from it again
    y.release()
    source.release()
    trace = recorded.stop()
    assert marks(trace) == []
    assert list(trace.lifetimes().end).count(-1) == 0
