"""Allocator models: every one keeps its promises, and the simple ones equal brute force."""

from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from fidelity import assert_same, run_model
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_trace import LETTERS, of_text

from dtr_alloc.fragment.models import (
    MIB,
    MODELS,
    NO_LIMIT,
    SAMPLES,
    Prepared,
    smallest_budget,
    structs,
)
from dtr_alloc.simulation.simulate import PLACEMENTS
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace

PLACED = [name for name in MODELS if name not in ("paging", "exact")]


def trace_of(script):
    """A trace from (size, stream) to allocate and integers to free the live block of that index."""
    trace = Trace()
    live = []
    for time, step in enumerate(script):
        if isinstance(step, tuple):
            address = (time + 1) << 40
            live.append((address, step))
            trace.add(
                Kind.ALLOCATE, time_ns=time, address=address, size_bytes=step[0], stream=step[1]
            )
        elif live:
            address, _ = live.pop(step % len(live))
            trace.add(Kind.FREE, time_ns=time, address=address)
    return trace


SIZES = st.one_of(
    st.integers(0, 4096),
    st.sampled_from([MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB]),
    st.integers(1, 40 * MIB),
)
STEPS = st.one_of(st.tuples(SIZES, st.sampled_from([0, 7])), st.integers(0, 63))
SCRIPTS = st.lists(STEPS, max_size=60)
BUDGETS = st.one_of(st.none(), st.integers(MIB, 200 * MIB))
OPTIONS = {
    "dtr": st.fixed_dictionaries({}, optional={"placement": st.sampled_from(PLACEMENTS)}),
    "pytorch": st.fixed_dictionaries(
        {},
        optional={
            "max_split_bytes": st.sampled_from([20 * MIB, 32 * MIB]),
            "roundup_power2_divisions": st.sampled_from([1, 2, 8]),
            "budget_is_fraction": st.booleans(),
            "collect_threshold": st.sampled_from([0.0, 0.3, 0.8]),
        },
    ),
}


def followed(trace, result):
    """Goes through what a model placed: yields the live [begin, end) after each event."""
    live, born = {}, {}
    number = 0
    for row, kind in enumerate(trace.kind):
        if not result.completed and row == result.failed_event:
            return
        if kind == Kind.ALLOCATE:
            if trace.size_bytes[row] > 0:
                begin = result.placements[number]
                live[number] = (begin, begin + trace.size_bytes[row])
            born[trace.address[row]] = number
            number += 1
        else:
            live.pop(born[trace.address[row]], None)
        yield live


@pytest.mark.parametrize("model", PLACED)
@settings(max_examples=40)
@given(script=SCRIPTS, budget=BUDGETS, data=st.data())
def test_no_two_live_allocations_overlap_and_no_budget_is_exceeded(model, script, budget, data):
    trace = trace_of(script)
    options = data.draw(OPTIONS.get(model.split("-")[0], st.just({})))
    result = run_model(trace, model, budget, placements=True, **options)
    for live in followed(trace, result):
        ranges = sorted(live.values())
        assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    assert result.peak_live_bytes <= result.peak_used_bytes <= result.peak_reserved_bytes
    if budget is not None:
        assert result.peak_reserved_bytes <= budget


@pytest.mark.parametrize("limits", [{"max_split_bytes": 20 * MIB}, {"collect_threshold": 0.1}])
def test_expandable_segments_go_back_page_by_page_only(limits):
    """Neither as oversize blocks nor by garbage collection: they would go whole. A page: 20 MiB."""
    script = [(40 * MIB, 0), 0, (10 * MIB, 0), (10 * MIB, 7), (20 * MIB, 7)]
    options = {"budget_is_fraction": True, **limits}
    result = run_model(trace_of(script), "pytorch-expandable", 40 * MIB, **options)
    assert (result.completed, result.failed_event) == (False, 4)
    assert result.peak_reserved_bytes == 40 * MIB


@pytest.mark.parametrize("model", list(MODELS))
@settings(max_examples=25)
@given(script=SCRIPTS, budget=BUDGETS)
def test_blocks_and_holes_tile_what_is_reserved(model, script, budget):
    prepared = Prepared(trace_of(script))
    result = prepared.run(model, budget)
    in_core = prepared.in_core(model, budget, {}, SAMPLES, False)
    at_end, at_worst = (structs(in_core, name) for name in ("last", "worst"))
    for blocks in (at_end, at_worst):
        assert all(a.address + a.size_bytes <= b.address for a, b in pairwise(blocks))
    shown = at_worst if result.completed else at_end
    assert result.holes == [block.size_bytes for block in shown if not block.used]
    assert sum(block.size_bytes for block in at_end) == result.end_reserved_bytes
    for at in structs(in_core, "samples"):
        assert at.used_bytes + at.free_bytes == at.reserved_bytes
        assert at.largest_free_bytes <= at.free_bytes <= at.free_blocks * at.largest_free_bytes
        assert at.largest_free_bytes**2 <= at.sum_free_squares <= at.free_bytes**2


@settings(max_examples=60)
@given(script=SCRIPTS, budget=BUDGETS)
def test_first_fit_equals_brute_force(script, budget):
    trace = trace_of(script)
    result = run_model(trace, "first-fit", budget, placements=True)
    end = NO_LIMIT if budget is None else budget // 512 * 512
    live, born, places = {}, {}, array("Q")
    for row, kind in enumerate(trace.kind):
        if kind == Kind.FREE:
            live.pop(born[trace.address[row]], None)
            continue
        size = (trace.size_bytes[row] + 511) // 512 * 512
        at = 0
        for begin, stop in sorted(live.values()):
            if at + size <= begin:
                break
            at = max(at, stop)
        if size and at + size > end:
            assert result.failed_event == row
            break
        born[trace.address[row]] = len(places)
        if size:
            live[len(places)] = (at, at + size)
        places.append(2 * MIB + at if size else 0)
    found = [0 if place == NO_LIMIT else place for place in result.placements[: len(places)]]
    assert found == list(places)


@settings(max_examples=60)
@given(script=SCRIPTS, unit=st.sampled_from([1, 4096, 2 * MIB]))
def test_paging_reserves_the_most_pages_that_were_in_use(script, unit):
    trace = trace_of(script)
    result = run_model(trace, "paging", page_bytes=unit)
    lifetimes = trace.lifetimes()
    pages = [
        sum(
            -(-size // unit)
            for start, stop, size in zip(
                lifetimes.start, lifetimes.end, lifetimes.size_bytes, strict=True
            )
            if start <= row and (stop == -1 or row < stop)
        )
        for row in range(len(trace))
    ]
    assert result.peak_reserved_bytes == max(pages, default=0) * unit


@settings(max_examples=60)
@given(script=SCRIPTS)
def test_bins_hold_each_power_of_two_and_stream_as_often_as_it_was_in_use_at_once(script):
    trace = trace_of(script)
    peaks, now, live = {}, {}, {}
    for row, kind in enumerate(trace.kind):
        if kind == Kind.ALLOCATE:
            size = trace.size_bytes[row]
            power = max(512, 1 << (size - 1).bit_length()) if size else 0
            live[trace.address[row]] = key = (power, trace.stream[row])
            now[key] = now.get(key, 0) + 1
            peaks[key] = max(peaks.get(key, 0), now[key])
        else:
            now[live.pop(trace.address[row])] -= 1
    result = run_model(trace, "pow2")
    assert result.peak_reserved_bytes == sum(power * n for (power, _), n in peaks.items())


def test_a_failure_says_where_and_what_remained():
    trace = trace_of([(30 * MIB, 0), (30 * MIB, 0), 0, (40 * MIB, 0)])
    result = run_model(trace, "first-fit", 80 * MIB)
    assert (result.completed, result.failed_event, result.failed_bytes) == (False, 3, 40 * MIB)
    assert result.budget_bytes - result.end_live_bytes == 50 * MIB
    assert list(result.holes) == [30 * MIB]
    assert run_model(trace, "exact", 80 * MIB).completed


@pytest.mark.parametrize("model", list(MODELS))
@settings(max_examples=15)
@given(script=SCRIPTS)
def test_the_smallest_budget_does_and_is_no_less_than_the_peak(model, script):
    prepared = Prepared(trace_of(script))
    found = smallest_budget(prepared, model)
    assert prepared.fits(model, found)
    assert found >= prepared.peak_live_bytes


@pytest.mark.parametrize("model", list(MODELS))
def test_a_trace_that_no_budget_is_enough_for_has_no_smallest_one(model):
    """The search went past 64 bits."""
    trace = Trace()
    trace.add(Kind.ALLOCATE, address=1 << 12, size_bytes=1 << 60)
    prepared = Prepared(trace)
    found = smallest_budget(prepared, model)
    assert (found is not None) == prepared.run(model, None).completed
    assert found is None or prepared.fits(model, found)


def test_a_block_that_moved_is_one_allocation():
    text = "A1024K:1000 A2048K:1000 <1024K:1024 >2048K:1024 F1024K A1024K:500 F2048K"
    trace = of_text(text)
    trace.validate()
    result = run_model(trace, "first-fit", placements=True)
    assert result.peak_live_bytes == 1500
    assert list(result.placements) == [2 * MIB, 2 * MIB + 1024]
    assert len(trace.lifetimes().start) == 2


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ("F64", "event 0, FREE of 0x40: no block is in use there"),
        ("A64 A64", "event 1, ALLOCATE of 0x40: a block is in use there since event 0"),
        ("A64 F64 F64", "event 2, FREE of 0x40"),
        ("<64", "event 0, MOVE_FROM of 0x40: no block"),
        ("A64 <64", "event 1, MOVE_FROM of 0x40: no MOVE_TO follows it: the trace ends"),
        ("A64 >64", "event 1, MOVE_TO of 0x40: no MOVE_FROM stands before it"),
        ("A64 <64 F64", "event 1, MOVE_FROM of 0x40: no MOVE_TO follows it: event 2 does"),
        ("?64", "event 0 is of kind 99; allowed: 0 to 12"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused_by_the_event(events, message, monkeypatch):
    monkeypatch.setitem(LETTERS, "?", 99)
    with pytest.raises(ValueError, match=message):
        run_model(of_text(events, size=8), "first-fit")


@pytest.mark.parametrize(
    ("model", "budget", "options", "message"),
    [
        ("bump", None, {}, "model is 'bump'; allowed: dtr"),
        ("paging", -1, {}, "budget_bytes is -1; allowed"),
        ("paging", None, {"page_bytes": 0}, "page_bytes is 0; allowed: 1 or more"),
        ("paging", None, {"page_bytes": "2"}, "page_bytes is '2'"),
        ("first-fit", None, {"page_bytes": 2}, "has no option 'page_bytes'; allowed: none"),
        ("pytorch", None, {"max_split_bytes": 1}, "max_split_bytes is 1; allowed: 20 MiB"),
        ("pytorch", None, {"roundup_power2_divisions": 3}, "is 3; allowed: powers of two"),
        ("pytorch", None, {"collect_threshold": 1.0}, "allowed: from 0"),
        ("dtr", 0, {"chunk_bytes": 3}, "chunk_bytes"),
        ("dtr", None, {"placement": 1}, "placement is 1; allowed: best-fit, first-fit"),
        ("pytorch", None, {"placement": "first-fit"}, "has no option 'placement'"),
    ],
)
def test_options_that_are_none_are_refused_by_name(model, budget, options, message):
    with pytest.raises(ValueError, match=message):
        run_model(trace_of([(8, 0)]), model, budget, **options)


def test_the_devices_of_a_trace_are_run_one_by_one():
    trace = Trace()
    trace.add(Kind.ALLOCATE, address=64, size_bytes=100, device=0)
    trace.add(Kind.ALLOCATE, address=64, size_bytes=300, device=1)
    with pytest.raises(ValueError, match=r"allocations of devices \[0, 1\]"):
        run_model(trace, "exact")
    assert run_model(trace, "exact", device=1).peak_live_bytes == 300


def test_our_heap_places_as_it_is_told():
    """Holes of 40 and of 30 MiB between blocks: the third request of 30 MiB and a byte less."""
    script = [(size * MIB, 0) for size in (40, 2, 30, 2, 2)]
    trace = trace_of([*script, 0, 1, (30 * MIB - 1, 0)])

    def begins_at(model, **options):
        result = run_model(trace, model, 100 * MIB, placements=True, **options)
        return result.placements[-1] - result.placements[0]

    for options in ({}, {"placement": "best-fit"}, {"placement": "two-ended"}):
        assert begins_at("dtr-fixed", **options) == 42 * MIB
    assert begins_at("dtr-fixed", placement="first-fit") == 0
    assert begins_at("dtr-first-fit") == begins_at("dtr", placement="first-fit") == 0
    rounded = [
        run_model(trace_of([(33 * MIB, 0)]), model).peak_used_bytes
        for model in ("dtr", "dtr-size-classes")
    ]
    assert rounded == [33 * MIB, 36 * MIB]


@pytest.mark.parametrize(
    ("old", "new"), [("ours", "dtr"), ("ours-first-fit", "dtr-first-fit"), ("power_of_two", "pow2")]
)
def test_a_model_is_found_by_the_name_that_it_had(old, new):
    trace = trace_of([])
    assert run_model(trace, old).model == new


# ---- PyTorch's caching allocator, as histories of real ones have it. They are of PyTorch's own
# allocator in CUDA builds, over a stand-in for the device; tests/cuda_emulator/
# test_caching_allocator.py makes and checks them, and longer ones. ----


HISTORIES = sorted((Path(__file__).parents[1] / "data" / "caching").glob("*.trace"))


def test_there_are_histories_of_both_orders_of_ties():
    versions = {trace_file.read(path).meta["torch"] for path in HISTORIES}
    assert versions == {"2.11.0", "2.13.0"}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_every_place_and_segment_is_as_recorded(path):
    trace = trace_file.read(path)
    assert assert_same(trace, **trace.meta["model"]) == 500


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        *((1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB)),
        *((10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB)),
    ],
)
def test_a_first_request_gets_a_segment_by_its_size(size, segment):
    assert run_model(trace_of([(size, 0)]), "pytorch").peak_reserved_bytes == segment


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1, 4, 512),
        (513, 0, 1024),
        (1200, 4, 1536),  # no more than 512 * 4: as without divisions
        *((5000, 4, 5120), (8192, 4, 8192), (9 * MIB, 4, 10 * MIB), (9 * MIB, 1, 9 * MIB)),
    ],
)
def test_requests_are_rounded_by_the_divisions_of_powers_of_two(size, divisions, rounded):
    result = run_model(trace_of([(size, 0)]), "pytorch", roundup_power2_divisions=divisions)
    assert result.peak_used_bytes == rounded
