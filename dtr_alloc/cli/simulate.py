"""``dtr-alloc simulate``: the cost of op logs under budgets and heuristics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from dtr_alloc import heuristics
from dtr_alloc.cli.common import each_once, given, list_option, print_table, results_file
from dtr_alloc.cli.runs import compiled, failed, workers_of, workers_options
from dtr_alloc.config import UNLIMITED_BYTES, parse_size
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate, tables
from dtr_alloc.simulation.executors import RunsFailed, cores


@click.command("simulate", short_help="Run op logs under budgets, without their job.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@list_option(
    "--budget",
    "0.3..1.0",
    "Ratios of the log's peak without a limit (0.5), ranges of them (0.3..1.0, by 0.1, or "
    "0.3..1.0:0.05), or sizes (8GiB, 1102074936).",
)
@list_option(
    "--heuristic",
    heuristics.ONLINE,
    "Presets, 'all' of them, or parts (c=ancestors,m=size,s=0.5).",
)
@list_option(
    "--dealloc",
    "eager",
    "The treatment of released tensors: eager evicts them at once, banish removes them for good "
    "if nothing needs them, ignore keeps them.",
)
@list_option("--seed", "0", "Numbers or ranges (0..9), for 'random' and --sampling sqrt.")
@click.option(
    "--semantics",
    type=click.Choice(["simrd", "runtime"]),
    help="simrd: as the published simulator, decision for decision; wheels lack it. runtime: the "
    "engine that trains; views are free, a mutation makes no copy (default: runtime for logs of "
    "DTR_ALLOC_LOG, simrd for others).",
)
@click.option(
    "--space",
    type=click.Choice(["bytes", "heap", "fixed"]),
    default="bytes",
    show_default=True,
    help="Count bytes, or place blocks, so that fragmentation counts (with --semantics runtime): "
    "on the heap, whose free memory is mapped where it is needed, or with no more addresses than "
    "the budget has bytes.",
)
@click.option(
    "--chunk",
    metavar="SIZE",
    help="The unit of mapping of --space heap and fixed, a multiple of 4KiB (default: a page).",
)
@click.option(
    "--room",
    type=click.Choice(["heuristic", "auto", "single", "window"]),
    default="heuristic",
    show_default=True,
    help="How room is made: as published with the heuristic, the cheaper way, by single "
    "storages, by runs of neighbors (with --semantics runtime).",
)
@click.option(
    "--placement",
    type=click.Choice(simulate.PLACEMENTS),
    default=simulate.PLACEMENTS[0],
    show_default=True,
    help="Which hole of the heap a tensor gets (with --space heap or fixed).",
)
@click.option(
    "--sampling",
    type=click.Choice(simulate.SAMPLINGS),
    default=simulate.SAMPLINGS[0],
    show_default=True,
    help="Choose among all n candidates, or, as DTR's prototype, among a random sample of the "
    "square root of n (with --semantics simrd).",
)
@click.option(
    "--least-size-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="X",
    help="Evict nothing smaller than X times the candidates' mean size; DTR's prototype has 0.01 "
    "(with --semantics simrd; default: 0).",
)
@click.option(
    "--moving",
    metavar="SIZE",
    help="Move contents where that costs less than evicting, at so many bytes a second (200GB), "
    "the log's costs being nanoseconds; with --space heap or fixed (default: nothing moves).",
)
@click.option(
    "--thrash",
    type=float,
    metavar="X",
    help="End a run whose compute passes X times that without a budget (default: none).",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="One JSON object a run and line; - is stdout."
)
@click.option(
    "--plot", "plot_path", metavar="FILE", help="Slowdown against budget (png, svg, pdf)."
)
@workers_options("one a core")
def command(
    *,
    logs: Sequence[str],
    budgets: Sequence[str],
    heuristics: Sequence[str],
    deallocs: Sequence[str],
    seeds: Sequence[str],
    semantics: str | None,
    space: str,
    chunk: str | None,
    room: str,
    placement: str,
    sampling: str,
    least_size_share: float,
    moving: str | None,
    thrash: float | None,
    json_path: str | None,
    plot_path: str | None,
    executor: str | None,
    jobs: int | None,
) -> None:
    """Runs op LOGs, each with every budget, heuristic, policy and seed, and shows the cost.

    A log was written by DTR_ALLOC_LOG, or is one of the DTR paper's; it may be compressed. An
    option that takes a LIST may be repeated. Running out of memory and thrashing are results, not
    failures.

    \b
    Examples:
      dtr-alloc simulate job.log.xz --budget 0.3..0.9 --heuristic marginal,dtr-full
      dtr-alloc simulate job.log.xz --space heap --json - --thrash 4
    """
    programs = compiled(logs)
    semantics = semantics or _semantics_of(programs)
    is_placed = space != "bytes"
    if is_placed and semantics != "runtime":
        raise click.UsageError(f"--space {space} needs --semantics runtime: simrd has no addresses")
    space_needed = "needs --space heap or fixed: counted bytes"
    if chunk is not None and not is_placed:
        raise click.UsageError(f"--chunk {space_needed} are not mapped")
    if moving is not None and not is_placed:
        raise click.UsageError(f"--moving {space_needed} have no place")
    if placement != simulate.PLACEMENTS[0] and not is_placed:
        raise click.UsageError(f"--placement {placement} {space_needed} have no place")
    if sampling != simulate.SAMPLINGS[0] and semantics != "simrd":
        raise click.UsageError(f"--sampling {sampling} needs --semantics simrd")
    if least_size_share != 0 and semantics != "simrd":
        raise click.UsageError(f"--least-size-share {least_size_share} needs --semantics simrd")
    if thrash is not None and not 1 <= thrash < float("inf"):
        raise click.UsageError(f"--thrash is {thrash}; allowed: 1 and more, in terms of the base")
    policies = each_once("--dealloc", deallocs, _deallocs)
    plan = simulate.Plan(
        limits=each_once("--budget", budgets, simulate.parse_limits),
        heuristics=given(
            "--heuristic", lambda: simulate.parse_heuristics(heuristics, semantics, policies)
        ),
        deallocs=policies,
        seeds=each_once("--seed", seeds, simulate.parse_seeds),
        semantics=semantics,
        space=space,
        chunk_bytes=0 if chunk is None else given("--chunk", lambda: parse_size(chunk)),
        room=room,
        placement=placement,
        sampling=sampling,
        least_size_share=least_size_share,
        move_bytes_per_s=0 if moving is None else given("--moving", lambda: parse_size(moving)),
        thrash=thrash,
    )
    given("the combination", plan.check)
    if plot_path is not None:
        _check_plot(plot_path)
    workers = workers_of(executor, jobs, cores())
    study = simulate.Study(plan, programs, workers)
    for program in programs:
        _warn_of_little(program)

    rows = []
    failure = None
    errors = Console(stderr=True)
    total, hidden = len(study.setups), not errors.is_terminal
    with results_file(json_path) as file:
        try:
            for row in track(study, "runs", total, console=errors, transient=True, disable=hidden):
                rows.append(row)
                if file is not None:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
        except RunsFailed as error:
            failure = failed(error)
        except (RuntimeError, OSError) as error:
            raise click.ClickException(str(error)) from None
    shown = Console(stderr=json_path == "-")
    for heading, table in tables.tables(rows):
        shown.print(heading, markup=False, highlight=False, soft_wrap=True)
        print_table(shown, table)
    if plot_path is not None:
        try:
            tables.picture(rows, Path(plot_path))
        except OSError as error:
            raise click.ClickException(f"--plot: {error}") from None
    if failure is not None:
        raise failure


def _semantics_of(programs: Sequence[Program]) -> str:
    recorded = {program.recorded for program in programs}
    if len(recorded) > 1:
        raise click.UsageError(
            "some logs are of DTR_ALLOC_LOG, some are not: say --semantics, or simulate them apart"
        )
    return "runtime" if recorded == {True} else "simrd"


def _warn_of_little(program: Program) -> None:
    """Warns if it was recorded from a job, but no step of it represents the others."""
    if program.recorded and not simulate.play_step(program, UNLIMITED_BYTES, learn=False).operators:
        click.echo(
            f"{program.path}: no step is repeated in it, so it may say little of those that "
            "follow; four steps and more are enough (--log-steps)",
            err=True,
        )


def _deallocs(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    for dealloc in found:
        if dealloc not in simulate.DEALLOCS:
            raise ValueError(f"{dealloc!r}; allowed: {', '.join(simulate.DEALLOCS)}")
    return found


def _check_plot(path: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        message = "--plot needs matplotlib: pip install 'dtr-alloc[plots]'"
        raise click.ClickException(message) from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in kinds:
        raise click.UsageError(f"--plot: {path!r}; allowed endings: {', '.join(sorted(kinds))}")
