"""Jobs in smaller and smaller budgets, under several settings: bits, counters and processor time.

    python -m bench.sweep [EXPERIMENT] [--job NAME]... [--fraction X]... [--steps N] [--rounds N]
        [--json PATH] [--smoke]

A cell is a job, a fraction of its activation memory (of its peak, where parameters are swapped) and
a setting; a process of its own trains it, one thread. The plain job and one that nothing is evicted
of train beside. The experiments:

- jobs: the default beside the policy of the DTR paper, in the first steps;
- learning: the policy and the plan that are learned, beside the rule that a job begins with;
- swapping: the same where parameters and states are most of the memory, and are swapped;
- changing: the same for a GPT that draws its batch, its depth and an evaluation for each step;
- custom-operators: a GPT whose attention is a custom operator: not trusted, tried (its first calls
  run twice) and trusted;
- compiled: a GPT of compiled blocks, and a ResNet that is one graph. Its cells take turns, a step
  each; in all others a cell trains by itself, so that its search for a plan has the time it needs.

A row has `step_ratio`, the time of the steps that count (their least, median or sum) in terms of
those with nothing evicted (of the plain job, for `compiled`), and the same by all clocks. Of the
last steps it has the compute that was repeated, in terms of the job's own, and counters per step.
`learned_in` and `planned_in` are the first steps in which a policy or a plan was followed,
`planned_after` the seconds until then, `by_plan` the share of the steps since that found all their
places and remapped once at most. Until something is followed, `waiting_step` is the median time of
a step on the job's own thread. What a cell ends with is compared bit by bit with the plain job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import click
import torch
from rich.table import Table

from bench import results
from bench.interleaved import CLOCKS, Counters, Interleaved, Process, Way, added, profile, shape_of
from bench.models import JOBS, JobFactory
from bench.models.changing import ChangingJob
from bench.models.compiled import CompiledResNet, CompiledTransformer
from bench.models.custom_attention import OPERATORS, CustomGpt
from bench.models.large import LARGE_JOBS

SETTINGS: dict[str, Way] = {
    "default": Way({}),
    "dtr-eqclass, eager": Way({"heuristic": "dtr-eqclass"}),
    "marginal": Way({"heuristic": "marginal"}),
    "adaptive": Way({"heuristic": "adaptive"}),
    "not trusted": Way({}, declared={"distrust": OPERATORS}),
    "tried": Way({}),
    "trusted": Way({}, declared={"trust": OPERATORS}),
}
LEARNING = ("marginal", "adaptive")
"""The rule that a job begins with, and what is learned."""
LAST = 8
"""Steps that count where something is learned."""


@dataclass(frozen=True)
class Experiment:
    """A part of the matrix.

    Attributes:
        steps: that a cell trains.
        first: the first step that counts; from the end if negative.
        reduced: the times of the steps that count, as one.
        clock: of `step_ratio`.
        against: the way that times are compared with.
        session: further settings of all sessions.
        of_peak: whether fractions are of the peak memory.
        together: whether cells take turns.
        unlimited_steps: before the budget holds.
    """

    jobs: Mapping[str, JobFactory]
    settings: tuple[str, ...]
    fractions: tuple[float, ...]
    steps: int
    first: int = -LAST
    reduced: Callable[[list[float]], float] = min
    clock: str = "cpu"
    against: str = "unlimited"
    session: dict[str, Any] = field(default_factory=dict)
    of_peak: bool = False
    together: bool = False
    unlimited_steps: int = 0
    scale: float = 1.0
    rounds: int = 1


DRAWN = {"gpt": ChangingJob}
COMPILED = {"transformer, by blocks": CompiledTransformer, "resnet, whole": CompiledResNet}
EXPERIMENTS = {
    "jobs": Experiment(
        *(JOBS, ("default", "dtr-eqclass, eager"), (0.9, 0.7, 0.5, 0.4, 0.3, 0.2), 3),
        first=1,
        clock="thread",
    ),
    "learning": Experiment(JOBS, LEARNING, (0.5, 0.3, 0.2), 60),
    "swapping": Experiment(
        *(LARGE_JOBS, LEARNING, (0.8, 0.6, 0.4), 24),
        session={"swap": "8GiB"},
        of_peak=True,
    ),
    "changing": Experiment(
        *(DRAWN, LEARNING, (0.5, 0.3, 0.2), 600),
        first=0,
        reduced=sum,
        clock="wall",
        scale=2.0,
        rounds=5,
    ),
    "custom-operators": Experiment(
        *({"gpt": CustomGpt}, ("not trusted", "tried", "trusted"), (0.7, 0.5, 0.4, 0.3), 12),
        first=3,
        reduced=median,
        clock="thread",
    ),
    "compiled": Experiment(
        *(COMPILED, ("default",), (0.9, 0.7, 0.5, 0.4), 24),
        first=2,
        clock="wall",
        against="plain",
        together=True,
        unlimited_steps=1,
        scale=8.0,
    ),
}


def measure(
    experiment: Experiment, job: str, steps: int, fractions: tuple[float, ...], scale: float
) -> Iterator[dict[str, Any]]:
    """The rows of one job in one round."""
    make = partial(experiment.jobs[job], scale=scale)
    found = profile(make, [__name__])
    shape = shape_of(found)

    def way(budget: int | str, of: Way) -> Way:
        session = {**experiment.session, **(of.settings or {}), "budget": budget}
        return Way(session, experiment.unlimited_steps, of.declared)

    rows: dict[str, dict[str, Any]] = {
        name: {"job": job, "fraction": None, "policy": name} for name in ("plain", "unlimited")
    }
    with ExitStack() as stack:
        start = partial(Process, make, [__name__])
        ways = Interleaved(stack, job, start, Way(), step_seconds=found["seconds"])
        ways.add("unlimited", way("unlimited", SETTINGS[experiment.settings[0]]))
        for fraction in fractions:
            of_peak = int(fraction * shape.peak_bytes)
            budget = of_peak if experiment.of_peak else shape.budget(fraction)
            for setting in experiment.settings:
                name = f"{setting} at {fraction}"
                rows[name] = {"job": job, "fraction": fraction, "policy": setting}
                rows[name] |= {"budget_bytes": budget, "missing_bytes": shape.peak_bytes - budget}
                ways.add(name, way(budget, SETTINGS[setting]))
        ways.run(steps, together=experiment.together)
    for name, row in rows.items():
        counters = ways.ways[name].pop("counters", [])
        row |= {key: value for key, value in ways.ways[name].items() if key != "ratio"}
        if row["outcome"] == "trains":
            row["outcome"] = "other bits" if row.pop("differs", []) else "same bits"
            times = {each: _columns(experiment, ways.times[each]) for each in (name, "plain")}
            base = _columns(experiment, ways.times.get(experiment.against, []))
            if base:
                row |= {f"{clock}_ratio": times[name][clock] / base[clock] for clock in base}
                row["step_ratio"] = row[f"{experiment.clock}_ratio"]
            row["plain_ratio"] = times[name]["cpu"] / times["plain"]["cpu"]
            if counters and counters[0]:
                row |= _counted(counters, ways.times[name], min(LAST, steps))
        yield row


def _columns(experiment: Experiment, times: list[tuple[float, ...]]) -> dict[str, float]:
    """The time of the steps that count, by clock."""
    return {
        clock: experiment.reduced(list(of))
        for clock, of in zip(CLOCKS, zip(*times[experiment.first :], strict=True), strict=False)
    }


def _counted(counters: Counters, times: list[tuple[float, ...]], last: int) -> dict[str, Any]:
    """What the counters say of the last steps, and of what was learned."""
    found: dict[str, Any] = added(counters, last)
    own, again = found.pop("total_cost_seconds"), found.pop("recompute_cost_seconds")
    learned_in, planned_in = (
        next((i for i, at in enumerate(counters) if at[key]), None)
        for key in ("learned", "planned")
    )
    wall = [step[1] for step in times]
    served = [
        [after[key] - before[key] for key in ("planned", "plan_misses", "remaps")]
        for before, after in pairwise(counters[planned_in:] if planned_in is not None else [])
    ]
    went = sum(planned > 0 and missed == 0 and remaps <= 1 for planned, missed, remaps in served)
    own_seconds = [step[2] for step in times[1:learned_in]]
    return found | {
        "repeated": again / own,
        "repeated_in_all": counters[-1]["recompute_cost_seconds"]
        / counters[-1]["total_cost_seconds"],
        "learned": counters[-1]["learned"],
        "learned_in": learned_in,
        "planned_in": planned_in,
        "planned_after": None if planned_in is None else sum(wall[1 : planned_in + 1]),
        "by_plan": went / len(served) if served else None,
        "waiting_step": median(own_seconds) if own_seconds else None,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Medians over the rounds; a line for each job and setting."""
    cells: dict[tuple[str, str], dict[Any, list[dict[str, Any]]]] = {}
    for row in rows:
        line = cells.setdefault((row["job"], row["policy"]), {})
        line.setdefault(row["fraction"], []).append(row)
    fractions = list(dict.fromkeys(row["fraction"] for row in rows))
    return results.lines(
        "Step time (of the compute repeated; MiB that come back in a step), by memory",
        ("job", "setting", *("-" if each is None else str(each) for each in fractions)),
        (
            (*names, *(_cell(line.get(each, [])) for each in fractions))
            for names, line in cells.items()
        ),
    )


def _cell(rounds: list[dict[str, Any]]) -> str:
    bad = [row["outcome"] for row in rounds if row["outcome"] != "same bits"]
    if bad or not rounds:
        return bad[0] if bad else ""
    middle = {
        key: median(row[key] for row in rounds)
        for key in ("step_ratio", "repeated", "swapped_in_bytes")
        if all(row.get(key) is not None for row in rounds)
    }
    text = f"{middle['step_ratio']:.2f}" if "step_ratio" in middle else "trains"
    if middle.get("repeated"):
        text += f" ({middle['repeated']:.2f})"
    if middle.get("swapped_in_bytes"):
        text += f" ({middle['swapped_in_bytes'] / results.MIB:.0f} MiB)"
    return text


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("name", metavar="EXPERIMENT", type=click.Choice(list(EXPERIMENTS)), default="jobs")
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Default: all.")
@click.option(
    "--fraction",
    "fractions",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Of the memory.",
)
@click.option("--steps", type=click.IntRange(1), help="Of a cell.")
@click.option("--rounds", type=click.IntRange(1), help="In which each cell trains anew.")
@results.options("One job, a budget or two, few steps.")
def main(
    name: str,
    jobs: tuple[str, ...],
    fractions: tuple[float, ...],
    steps: int | None,
    rounds: int | None,
    path: str | None,
    smoke: bool,
) -> None:
    torch.set_num_threads(1)
    experiment = EXPERIMENTS[name]
    if unknown := set(jobs) - experiment.jobs.keys():
        known = ", ".join(experiment.jobs)
        raise click.BadParameter(f"{', '.join(unknown)}; allowed: {known}", param_hint="--job")
    names = jobs or tuple(experiment.jobs)[: 1 if smoke else None]
    fractions = fractions or experiment.fractions
    steps, rounds = steps or experiment.steps, rounds or experiment.rounds
    scale = 1.0 if smoke else experiment.scale
    if smoke:
        middle = len(fractions) // 2
        fractions, rounds = fractions[middle : middle + 1], 1
        steps = min(steps, LAST + 2)
    console = results.console()
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        for job in names:
            with console.status(f"training {job}"):
                found = measure(experiment, job, steps, fractions, scale)
                rows += [row | {"round": number} for row in found]
    console.print(table(rows))
    facts = {"experiment": name, "steps": steps, "rounds": rounds, "scale": scale}
    results.write(path, "sweep", **facts, results=rows)


if __name__ == "__main__":
    main()
