"""Options of the commands on traces, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dtr_alloc.cli.common import each_once, list_option
from dtr_alloc.config import parse_size
from dtr_alloc.fragment.models import MODELS, OPTIONS, current_name
from dtr_alloc.simulation import simulate

FILE: Any = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file that is read."""

OUT: Any = click.Path(dir_okay=False, path_type=Path)


truncated_option = click.option(
    "--allow-truncated",
    is_flag=True,
    help="Take what a killed job left of its trace or log as it is.",
)


budgets_option = list_option(
    "--budget",
    "unlimited",
    "Of these: ratios of the peak of live bytes (1.1, 1.0..1.5), sizes (8GiB), unlimited.",
)


def models_of(given: Sequence[str]) -> list[str]:
    """The models of --model. Raises click.UsageError."""
    names = [current_name(name.strip()) for text in given for name in text.split(",")]
    found = list(MODELS) if "all" in names else [name for name in names if name != "none"]
    for name in found:
        if name not in MODELS:
            allowed = ", ".join(("all", "none", *MODELS))
            raise click.UsageError(f"there is no model {name!r} for --model; allowed: {allowed}")
    return list(dict.fromkeys(found))


def settings_of(given: Sequence[str], models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of --set, by the models that have them. Raises click.UsageError for one that no
    chosen model has."""
    allowed = {
        model: OPTIONS.get(MODELS[model][0], frozenset()) - {"segment_addresses"}
        for model in models
    }
    names = sorted(frozenset().union(*allowed.values()))
    found: dict[str, dict[str, Any]] = {model: {} for model in models}
    for text in given:
        name, equals, written = text.partition("=")
        if not equals or name not in names:
            raise click.UsageError(
                f"--set is {text!r}; allowed: NAME=VALUE, names {', '.join(names) or 'none'}"
            )
        value: Any = written
        try:
            if name == "collect_threshold":
                value = float(written)
            elif name != "placement":
                value = parse_size(written) if name.endswith("_bytes") else int(written)
        except ValueError as error:
            raise click.UsageError(f"--set {name}: {error}") from None
        for model in models:
            if name in allowed[model]:
                found[model][name] = value
    return found


def budgets_of(texts: Sequence[str]) -> list[simulate.Limit | None]:
    """The budgets of --budget; None: unlimited. Raises click.UsageError."""
    return each_once(
        "--budget",
        texts,
        lambda text: [None] if text == "unlimited" else simulate.parse_limits(text),
    )
