"""How heuristics are written, and that the C header numbers them as Python does. Needs no build."""

import math
import re

import pytest

from dtr_alloc import heuristics
from dtr_alloc.config import ConfigError, given_settings
from dtr_alloc.heuristics import COSTS, PRESETS, SELECTIONS, SIZES, Heuristic, parse
from dtr_alloc.simulation import presets
from native import build_core


@pytest.fixture
def registry(monkeypatch):
    """Names registered in a test are forgotten after it."""
    monkeypatch.setattr(heuristics, "_registered", {})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_known_by_its_name(name):
    assert parse(f" {name} ") is PRESETS[name]
    assert given_settings({"DTR_ALLOC_HEURISTIC": name}).config.heuristic is PRESETS[name]
    assert str(PRESETS[name]) == name


@pytest.mark.parametrize("name", presets.PRESETS)
def test_studies_know_more_presets_than_jobs_do(name):
    assert presets.parse(name) is presets.PRESETS[name]
    assert presets.parse("c=local,s=1").cost == "local"
    if name not in PRESETS:
        with pytest.raises(ConfigError, match="allowed: dtr-full, dtr-eqclass, lru, coop, mar"):
            given_settings({}, heuristic=name)


def test_room_and_deallocation_are_parts_too():
    found = parse("c=marginal,m=size,s=0.5,room=single,dealloc=lazy")
    assert (found.room, found.dealloc) == ("single", "lazy")
    assert (parse("s=1").room, parse("s=1").dealloc) == ("auto", "eager")
    assert parse("s=1,next=1").foresight
    assert not parse("s=1,next=0").foresight


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("c=ancestors,m=size,s=0.5", ("ancestors", "size", 0.5, 1.0)),
        ("s=1", ("none", "none", 1.0, 1.0)),
        (" r = 2 , c = local ", ("local", "none", 0.0, 2.0)),
        ("m=size+free,c=neighborhood,s=0", ("neighborhood", "size+free", 0.0, 1.0)),
    ],
)
def test_parts_that_are_left_out_are_none(text, parts):
    heuristic = parse(text)
    assert heuristic.name == text.strip()
    found = (heuristic.cost, heuristic.size, heuristic.staleness, heuristic.recompute_factor)
    assert found == parts


@pytest.mark.parametrize(
    "text",
    [
        *("best", "", "c=all", "c=local,c=none", "x=1", "c=", "c=local,", "s=2", "s=-0.1", "s=nan"),
        *("r=0.5", "r=inf", "r=nan", "s=fast", "dtr-eqclass,s=1", None, 3),
        *("room=big", "dealloc=never", "next=2", "next="),
    ],
)
def test_what_is_no_heuristic_is_refused(text):
    with pytest.raises(ValueError, match=r"allowed|not a heuristic"):
        parse(text)
    if text:
        with pytest.raises(ConfigError, match=r"heuristic is .*; allowed: dtr-full, .* parts"):
            given_settings({}, heuristic=text)


def test_a_registered_callable_is_known_by_its_name(registry):
    made = heuristics.register_heuristic("mine", lambda candidate: candidate.size_bytes)
    assert given_settings({"DTR_ALLOC_HEURISTIC": "mine"}).config.heuristic is made
    assert made.select == "callback"
    with pytest.raises(ConfigError, match="registered: mine"):
        given_settings({"DTR_ALLOC_HEURISTIC": "yours"})


@pytest.mark.parametrize("name", ["lru", "c=local", "", " mine"])
def test_a_name_that_means_something_else_can_not_be_registered(registry, name):
    with pytest.raises(ValueError, match="the name of a heuristic is"):
        heuristics.register_heuristic(name, len)


def test_only_callables_are_registered(registry):
    with pytest.raises(ValueError, match=r"the score of 'mine' is 3; allowed: a callable"):
        heuristics.register_heuristic("mine", 3)


@pytest.mark.parametrize(
    "parts",
    [
        *({"cost": "dear"}, {"size": "big"}, {"select": "best"}, {"staleness": math.nan}),
        *({"recompute_factor": math.inf}, {"seed": -1}, {"select": "callback"}, {"score": len}),
    ],
)
def test_a_part_that_does_not_exist_is_refused(parts):
    with pytest.raises(ValueError, match=r"allowed|goes with"):
        Heuristic("h", **parts)


@pytest.mark.parametrize(
    ("prefix", "names"), [("COST", COSTS), ("SIZE", SIZES), ("SELECT", SELECTIONS)]
)
def test_the_header_numbers_the_parts_in_the_same_order(prefix, names):
    header = build_core.declarations()
    numbered = dict(re.findall(rf"\bDTR_{prefix}_(\w+) = (\d+)", header))
    assert sorted(map(int, numbered.values())) == list(range(len(names)))


def test_numbers_are_the_fields_of_the_struct_in_order():
    header = build_core.declarations()
    struct = re.search(r"typedef struct dtr_heuristic \{(.*?)\} dtr_heuristic;", header, re.S)
    fields = re.findall(r"(\w+);", re.sub(r"/\*.*?\*/", "", struct[1], flags=re.S))
    assert fields == [
        *("select", "cost", "size", "staleness_exponent", "recompute_factor", "seed", "foresight")
    ]
    assert presets.PRESETS["megengine"].numbers() == (0, 4, 2, 1.0, 1.5, 0, False)
