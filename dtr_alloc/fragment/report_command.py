"""What ``dtr-alloc fragment report`` does once click has read its options."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from dtr_alloc import simulate
from dtr_alloc.command_error import InputError
from dtr_alloc.fragment import formats, report
from dtr_alloc.fragment.replay import MODELS, Prepared
from dtr_alloc.fragment.trace import TraceError


def run(
    *,
    traces: Sequence[Path],
    out: Path | None,
    json_path: str | None,
    models: Sequence[str],
    budgets: Sequence[str],
    smallest: bool,
    maps: bool,
    by_time: bool,
    allow_truncated: bool,
) -> None:
    """Prints tables, and writes JSON and pictures where they are asked for. Raises
    click.UsageError and InputError before it writes anything, and click.ClickException where it
    cannot."""
    if out is not None and not all(map(importlib.util.find_spec, ("matplotlib", "numpy"))):
        raise click.UsageError(
            "--out draws pictures, which needs matplotlib: pip install 'dtr-alloc[plots]'"
        )
    if out is not None and out.exists() and not out.is_dir():
        raise click.UsageError(f"--out is {str(out)!r}, which is no folder")
    if maps and out is None:
        raise click.UsageError("--maps needs --out, the folder for them")
    chosen = models_of(models)
    limits = budgets_of(budgets)
    found: list[report.Report] = []
    for path in traces:
        try:
            found += report.reports(path.stem, formats.read(path, allow_truncated=allow_truncated))
        except (TraceError, OSError) as error:
            text = str(error)
            named = text if str(path) in text else f"{path}: {text}"
            raise InputError(named) from None
    console = Console(stderr=json_path == "-", markup=False)
    for part in found:
        prepared = Prepared(part.trace)
        for model in chosen:
            for at, limit in enumerate(limits):
                size = None if limit is None else limit.resolve(prepared.peak_live_bytes)
                part.rows.append(
                    report.replayed(
                        prepared, model, size, smallest=smallest and not at, blocks=maps
                    )
                )
        console.print(report.table(part))
    try:
        if json_path is not None:
            write_json(report.document(found), json_path)
        if out is not None:
            for stem, part in zip(stems(found), found, strict=True):
                for picture in report.write_pictures(
                    part, out, stem, by_event=not by_time, maps=maps
                ):
                    console.print(str(picture), soft_wrap=True)
    except OSError as error:
        raise click.ClickException(str(error)) from None


def models_of(given: Sequence[str]) -> list[str]:
    """What --model says. Raises click.UsageError."""
    names = [name.strip() for text in given for name in text.split(",")]
    found = list(MODELS) if "all" in names else [name for name in names if name != "none"]
    for name in found:
        if name not in MODELS:
            allowed = ", ".join(("all", "none", *MODELS))
            raise click.UsageError(f"there is no model {name!r} for --model; allowed: {allowed}")
    return list(dict.fromkeys(found))


def budgets_of(given: Sequence[str]) -> list[simulate.Limit | None]:
    """What --budget says; None: unlimited. Raises click.UsageError."""
    found: list[simulate.Limit | None] = []
    for text in given:
        try:
            found += [None] if text == "unlimited" else simulate.parse_limits(text)
        except ValueError as error:
            raise click.UsageError(f"--budget: {error}") from None
    return list(dict.fromkeys(found))


def stems(found: Sequence[report.Report]) -> list[str]:
    """A file name for each report; a number behind those that are there already."""
    stems: list[str] = []
    for part in found:
        stem = re.sub(r"[^\w.-]+", "-", part.label)
        again = sum(re.sub(r"~\d+$", "", made) == stem for made in stems)
        stems.append(f"{stem}~{again + 1}" if again else stem)
    return stems


def write_json(document: object, path: str) -> None:
    """To standard output for ``-``, else to a file as a whole. Raises OSError."""
    if path == "-":
        json.dump(document, sys.stdout)
        sys.stdout.write("\n")
        return
    beside = Path(f"{path}.{os.getpid()}.part")
    try:
        beside.write_text(json.dumps(document) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
