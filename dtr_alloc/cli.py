"""The command line: ``dtr-alloc run``, ``build``, ``info``, ``simulate`` and others.

``run`` is the same as setting the variables and starting python: it checks the options, sets
``DTR_ALLOC_*`` in the environment and runs the job in this process as ``__main__``. The budget is
switched on by ``import torch`` in the job, so that what a script sets before it imports torch
(``OMP_NUM_THREADS``, ``CUDA_VISIBLE_DEVICES``) counts as it does without us. Where PyTorch does
not call entry points, it is switched on before the job's first line.

Processes that the job starts inherit the variables, so the ranks that ``torch.distributed.run``
starts have the budget too: each its own.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any

import click
from click.core import ParameterSource

from dtr_alloc import _autoload, config, heuristics, report
from dtr_alloc.command_error import InputError
from dtr_alloc.fragment.command import fragment

ENTRY_POINT = "dtr_alloc._autoload:autoload"


@dataclass(frozen=True)
class Job:
    """A program to run as ``__main__``, as python would: a script (or folder, or zip) or a module.

    Attributes:
        target: the script's path, or the module's name.
        is_module: which of the two.
        arguments: sys.argv[1:] of the job.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]

    def run(self) -> None:
        """Runs the job to its end in this process; what it raises passes through."""
        sys.excepthook = _job_excepthook(sys.excepthook)
        sys.argv = [self.target, *self.arguments]
        if self.is_module:
            _set_first_path(os.getcwd())
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            _set_first_path(os.path.dirname(os.path.realpath(self.target)))
            runpy.run_path(self.target, run_name="__main__")


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder  # was the folder of this command


def _job_excepthook(show: Callable[..., Any]) -> Callable[..., Any]:
    """The excepthook of a job: leaves out the frames between python and the job."""
    runpy_files = (getattr(runpy, "__file__", None), "<frozen runpy>")

    def file_of(traceback: TracebackType) -> str:
        return traceback.tb_frame.f_code.co_filename

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        outer = traceback
        while outer is not None and file_of(outer) != __file__:
            outer = outer.tb_next
        while outer is not None and file_of(outer) in (__file__, *runpy_files):
            outer = outer.tb_next
        shown = outer or traceback
        show(kind, error.with_traceback(shown), shown)

    return excepthook


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dtr-alloc", prog_name="dtr-alloc")
def commands() -> None:
    """Trains PyTorch jobs under a memory budget, with the same bits as without one."""


@commands.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a script or module under a budget.",
)
@click.option("--budget", metavar="B", help="8GiB, 60% of the device, bytes, or 'unlimited'.")
@click.option("--device", metavar="D", help="auto, cuda or cpu.")
@click.option("--heuristic", metavar="H", help="How to choose what to evict.")
@click.option(
    "--dealloc", metavar="P", help="What becomes of dropped tensors: eager, lazy, banish, ignore."
)
@click.option("--room", metavar="R", help="How room is made: heuristic, auto, single, window.")
@click.option("--log", metavar="FILE", help="Write an op log (.gz, .bz2, .xz are compressed).")
@click.option("--log-steps", metavar="A..B", help="Which steps are logged: 3, 3..5, 3.. or ..5.")
@click.option("--trace", metavar="FILE", help="Write a trace of the allocator.")
@click.option("--report", "show_report", is_flag=True, help="Print a table to stderr at the end.")
@click.option("--costs", metavar="FILE", help="Take operators' costs from FILE, and add to it.")
@click.option("--stats", metavar="FILE", help="Write stats() as JSON at the end.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    budget: str | None,
    device: str | None,
    heuristic: str | None,
    dealloc: str | None,
    room: str | None,
    log: str | None,
    log_steps: str | None,
    trace: str | None,
    show_report: bool,
    costs: str | None,
    stats: str | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Job:
    """Runs SCRIPT (with -m: the module SCRIPT) with ARGUMENTS under a budget.

    Everything after SCRIPT belongs to it. Without --budget, DTR_ALLOC_BUDGET or the file named
    by DTR_ALLOC_CONFIG must give one; with --log it is unlimited, and with --trace alone only the
    allocator is on, and nothing is ever evicted. Processes that the job starts get the same
    settings each.
    """
    options = {
        "budget": budget,
        "device": device,
        "heuristic": heuristic,
        "dealloc": dealloc,
        "room": room,
        "log": log,
        "log_steps": log_steps,
        "trace": trace,
        "report": "1" if show_report else None,
        "costs": costs,
        "stats": stats,
    }
    # An empty option is a mistake, an empty variable is none: here the two must not meet.
    for name, value in options.items():
        if value == "":
            raise click.UsageError(f"--{name.replace('_', '-')} is empty")
    try:
        given = config.given_settings(**options)
    except config.ConfigError as error:
        source = error.source
        if source.startswith("the argument "):
            source = source.replace("the argument ", "--").replace("_", "-")
        raise click.UsageError(
            str(config.ConfigError(source, error.value, error.allowed))
        ) from None
    if not {"budget", "log", "trace"} & given.keys():
        raise click.UsageError(
            "no budget: give --budget 8GiB (or 60%, or unlimited), or set DTR_ALLOC_BUDGET"
        )
    if not is_module and not os.path.exists(script):
        raise click.UsageError(f"there is no script {script!r}")
    for name, value in options.items():
        if value is not None:
            os.environ[config.variable(name)] = value
    # The file may have given it; the entry point looks at the variable only.
    if "trace" in given:
        os.environ["DTR_ALLOC_TRACE"] = str(given["trace"].written)
    if {"budget", "log"} & given.keys():
        os.environ["DTR_ALLOC_BUDGET"] = str(
            given["budget"].written if "budget" in given else "unlimited"
        )
    return Job(script, is_module, arguments)


@commands.command(short_help="Compile what the first job would compile.")
@click.option(
    "--device", "devices", multiple=True, metavar="D", help="cpu or cuda; may be given twice."
)
def build(devices: tuple[str, ...]) -> None:
    """Compiles the bridge to PyTorch, as the first job would, and prints where it is.

    For each device that the installed PyTorch is built for, or for those given. It needs no device:
    it is for images.
    """
    _autoload.stand_aside()
    from dtr_alloc import bridge

    possible = bridge.kinds()
    for device in devices:
        if device not in possible:
            raise click.BadParameter(
                f"{device!r}: the installed torch is built for {' and '.join(possible)}",
                param_hint="--device",
            )
    for device in devices or possible:
        try:
            click.echo(bridge.build(device))
        except bridge.BridgeError as error:
            raise click.ClickException(str(error)) from None


@commands.command(short_help="Say what is active here, and if something is not, why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def info(as_json: bool) -> None:
    """Says what is active here and, if something is not, why.

    Starts nothing: no budget is enabled and no bridge is compiled.
    """
    _autoload.stand_aside()
    found = gather_info()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="dtr_alloc", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, value in _info_rows(found):
        table.add_row(name, value)
    Console(markup=False).print(table)


def gather_info() -> dict[str, Any]:
    """What `info` shows, by subject. A part that fails is described, never raised."""
    return {
        "dtr_alloc": report.package_version("dtr-alloc") or "not installed: run from its sources",
        "python": sys.version.split()[0],
        "core": _core_info(),
        "torch": _torch_info(),
        "bridge": _bridge_info(),
        "cuda": _cuda_info(),
        "entry_point": _entry_point_info(),
        "variables": _variables_info(),
        "physical_memory_bytes": _physical_memory_bytes(),
    }


def _failure(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _core_info() -> dict[str, Any]:
    try:
        from dtr_alloc.core import lib
    except ImportError as error:
        return {"built": False, "reason": _failure(error)}
    return {"built": True, "abi_version": lib.dtr_abi_version()}


def _torch_info() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:  # a broken torch is a finding, whatever it raises
        return {"version": None, "reason": _failure(error)}
    return {"version": str(torch.__version__), "cuda": torch.version.cuda}


def _bridge_info() -> dict[str, Any]:
    try:
        from dtr_alloc import bridge

        found = bridge.status()
    except Exception as error:
        return {"compiler": None, "cached": None, "path": None, "reason": _failure(error)}
    return {key: value if value is None else _plain(value) for key, value in found.items()}


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _cuda_info() -> dict[str, Any]:
    try:
        from dtr_alloc.core import ffi, lib
    except ImportError as error:
        return {"usable": False, "devices": 0, "reason": f"the core is not built: {error}"}
    count = ffi.new("int32_t *")
    if lib.dtr_cuda_probe(ffi.NULL, count) == lib.DTR_OK:
        return {"usable": True, "devices": int(count[0]), "reason": None}
    message = ffi.string(lib.dtr_last_error()).decode(errors="replace")
    return {"usable": False, "devices": 0, "reason": message}


def _entry_point_info() -> dict[str, Any]:
    registered = any(point.value == ENTRY_POINT for point in entry_points(group="torch.backends"))
    switch = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    reason = None
    if not registered:
        reason = "dtr_alloc is not installed here, so import torch does not call it"
    elif not _autoload_is_on():
        reason = "TORCH_DEVICE_BACKEND_AUTOLOAD is not 1, so import torch calls no entry point"
    elif _autoload.asked_by() is None:
        reason = "DTR_ALLOC_BUDGET is not set, so import torch enables nothing"
    return {
        "registered": registered,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": switch,
        "enables": reason is None,
        "reason": reason,
    }


def _autoload_is_on() -> bool:
    return os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"


def _variables_info() -> dict[str, Any]:
    present = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(config.PREFIX) and value
    }
    try:
        config.load_config()
    except config.ConfigError as error:
        return {"set": present, "valid": False, "reason": str(error)}
    return {"set": present, "valid": True, "reason": None}


def _physical_memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _info_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    def show(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "-" if value is None else str(value)

    rows = []
    for name, value in found.items():
        if name.endswith("_bytes"):
            rows.append((name.removesuffix("_bytes"), config.format_size(value)))
        elif isinstance(value, dict):
            for key, part in value.items():
                if isinstance(part, dict):
                    part = "\n".join(f"{k}={v}" for k, v in part.items()) or "none"
                rows.append((f"{name}: {key}", show(part)))
        else:
            rows.append((name, show(value)))
    return rows


def _list_option(name: str, default: str, text: str) -> Callable[[Any], Any]:
    """An option that may be given more than once, each time with a list."""
    return click.option(
        name, f"{name[2:]}s", multiple=True, default=(default,), show_default=True, metavar="LIST",
        help=text,
    )  # fmt: skip


@commands.command(short_help="Replay op logs under budgets, without their job.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@_list_option(
    "--budget",
    "0.3..1.0",
    "Ratios of the log's peak without a limit (0.5), ranges of them (0.3..1.0, by 0.1, or "
    "0.3..1.0:0.05), or sizes (8GiB, 1102074936).",
)
@_list_option(
    "--heuristic",
    heuristics.DEFAULT,
    "Presets, 'all' of them, parts (c=ancestors,m=size,s=0.5), or, with simrd's semantics, its "
    "names (DTR, DTRUnopt, LRU, AbEq, ...).",
)
@_list_option(
    "--dealloc",
    "eager",
    "What becomes of a tensor that is released: eager evicts it at once, banish removes it for "
    "good if nothing needs it, ignore does nothing.",
)
@_list_option("--seed", "0", "Numbers or ranges (0..9), for 'random' only.")
@click.option(
    "--semantics",
    type=click.Choice(["simrd", "runtime"]),
    default="simrd",
    show_default=True,
    help="simrd: as the published simulator, decision for decision. runtime: the engine that "
    "trains; views are free, a mutation makes no copy.",
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
    help="How room is made: as the heuristic was published, by what costs less, by single "
    "storages, by runs of neighbors (with --semantics runtime).",
)
@click.option(
    "--placement",
    type=click.Choice(config.PLACEMENTS),
    default=config.Config.placement,
    show_default=True,
    help="Which hole of the heap a tensor gets (with --space heap or fixed).",
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
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes (default: one a core)."
)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="FILE",
    help="Replay the schedules in FILE (dtr-alloc schedule), each with its own budget, instead.",
)
@click.pass_context
def simulate(
    context: click.Context,
    logs: tuple[str, ...],
    budgets: tuple[str, ...],
    heuristics: tuple[str, ...],
    deallocs: tuple[str, ...],
    seeds: tuple[str, ...],
    json_path: str | None,
    plot_path: str | None,
    schedules: tuple[str, ...],
    **options: Any,
) -> None:
    """Replays op LOGs, each with every budget, heuristic, policy and seed, and says what it costs.

    A log is what DTR_ALLOC_LOG writes, or one of the DTR paper's (.xz, .gz and others are read as
    they are). Every option that takes a LIST may be given more than once. Running out of memory
    and thrashing are results, not failures.
    """
    from dtr_alloc import schedule_command, simulate_command

    if schedules:
        given = ParameterSource.DEFAULT
        for name in context.params.keys() - {"logs", "json_path", "schedules"}:
            if context.get_parameter_source(name) is not given:
                raise click.UsageError(f"--schedule says what --{name.rstrip('s')} would say")
        schedule_command.replay(logs=logs, paths=schedules, json_path=json_path)
        return
    simulate_command.run(
        logs=logs,
        budgets=budgets,
        heuristics=heuristics,
        deallocs=deallocs,
        seeds=seeds,
        json_path=json_path,
        plot_path=plot_path,
        **options,
    )


@commands.command(short_help="Look for the best evictions, with the whole log known.")
@click.argument("log", metavar="LOG")
@_list_option("--budget", "0.5", "As for simulate.")
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the schedules are written (.gz, .bz2, .xz are compressed).",
)
@click.option(
    "--iterations",
    "steps",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Steps of local search. The same number and seed give the same schedule.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=0,
    metavar="S",
    help="End local search after so long, for each budget (default: no limit).",
)
def schedule(log: str, budgets: tuple[str, ...], **options: Any) -> None:
    """Looks for evictions that keep the LOG within each budget at little recomputing.

    All that the log will do is known, so this is no policy: it says how far the policies are
    from what can be done. What it finds is never worse than a preset. `dtr-alloc simulate LOG
    --schedule FILE` replays it.
    """
    from dtr_alloc import schedule_command

    schedule_command.find(log=log, budgets=budgets, **options)


@commands.command(short_help="Run the studies that the docs show.")
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option(
    "--out",
    metavar="FOLDER",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where NAME.json and NAME.svg are written.",
)
@click.option(
    "--logs",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The op logs that the DTR paper published (*.log.xz), for the studies of them.",
)
@click.option("--smoke", is_flag=True, help="A small part of each, in seconds; no result.")
@click.option("--redraw", is_flag=True, help="Draw again what the JSON in FOLDER says.")
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes (default: one a core)."
)
def reproduce(
    names: tuple[str, ...],
    out: Path,
    logs: Path | None,
    smoke: bool,
    redraw: bool,
    jobs: int | None,
) -> None:
    """Runs the studies NAME..., each to a JSON file and pictures; without a name, lists them."""
    from dtr_alloc import reproduce_command
    from dtr_alloc.simulate_command import cores
    from dtr_alloc.studies import study
    from dtr_alloc.studies.study import Options

    if not names:
        for name in study.NAMES:
            click.echo(f"{name:<14}{study.load(name).title}")
        return
    for name in names:
        try:
            study.load(name)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    options = Options(smoke=smoke, logs=logs, jobs=jobs or cores())
    reproduce_command.run(names, folder=out, redraw=redraw, options=options)


commands.add_command(fragment)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command ``dtr-alloc``. A job runs after click has returned, so that its exceptions and
    exit codes are python's and not click's."""
    try:
        job = commands.main(
            arguments if arguments is None else list(arguments),
            prog_name="dtr-alloc",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except MemoryError as error:
        short = InputError(f"there is not enough memory for this: {error or 'MemoryError'}")
        short.show()
        sys.exit(short.exit_code)
    except click.Abort:
        sys.exit(1)
    if not isinstance(job, Job):
        sys.exit(job if isinstance(job, int) else 0)
    called = _autoload_is_on() and _entry_point_info()["registered"]
    if not called or "torch" in sys.modules:
        _autoload.stand_aside()
        _autoload.switch_on()
    try:
        job.run()
    finally:
        if "torch" in sys.modules and "dtr_alloc.runtime" not in sys.modules:
            print(
                "dtr_alloc: the job ran WITHOUT a budget: import torch did not call the entry "
                "point (was DTR_ALLOC_BUDGET or TORCH_DEVICE_BACKEND_AUTOLOAD changed?)",
                file=sys.stderr,
            )
        elif "torch" not in sys.modules:
            print("dtr_alloc: the job never imported torch: nothing was budgeted", file=sys.stderr)


if __name__ == "__main__":
    main()
