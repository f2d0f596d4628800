"""``dtr-alloc info``: the state of the installation, and the reasons for missing parts."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from dtr_alloc import _autoload, config, report, torch_versions
from dtr_alloc.cli.run import autoload_is_on, entry_point_is_registered


@click.command("info", short_help="Show the state of the installation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """Shows the state of the installation, and the reasons for missing parts.

    Starts nothing: no budget is enabled and no bridge is compiled.
    """
    _autoload.stand_aside()
    found = gather_info()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    table = Table(title="dtr_alloc", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, value in _info_rows(found):
        table.add_row(name, value)
    Console(markup=False).print(table)


def gather_info() -> dict[str, Any]:
    """The findings by subject. A part that fails is described, never raised."""
    return {
        "dtr_alloc": report.package_version("dtr-alloc") or "not installed: run from its sources",
        "python": sys.version.split()[0],
        "core": _core_info(),
        "torch": _torch_info(),
        "bridge": _bridge_info(),
        "cuda": _cuda_info(),
        "entry_point": _entry_point_info(),
        "variables": _variables_info(),
        "physical_memory_bytes": psutil.virtual_memory().total,
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
        return {"version": None, "tried": torch_versions.TRIED, "reason": _failure(error)}
    version = str(torch.__version__)
    return {
        "version": version,
        "cuda": torch.version.cuda,
        "tried": torch_versions.TRIED,
        "reason": torch_versions.older(version) or torch_versions.newer(version),
    }


def _bridge_info() -> dict[str, Any]:
    try:
        from dtr_alloc.torch import bridge

        return bridge.status()
    except Exception as error:
        return {"compiler": None, "cached": None, "path": None, "reason": _failure(error)}


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
    registered = entry_point_is_registered()
    switch = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    reason = None
    if not registered:
        reason = "dtr_alloc is not installed here, so import torch does not call it"
    elif not autoload_is_on():
        reason = "TORCH_DEVICE_BACKEND_AUTOLOAD is not 1, so import torch calls no entry point"
    elif _autoload.asked_by() is None:
        reason = "DTR_ALLOC_BUDGET is not set, so import torch enables nothing"
    return {
        "registered": registered,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": switch,
        "enables": reason is None,
        "reason": reason,
    }


def _variables_info() -> dict[str, Any]:
    present = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(config.PREFIX) and value
    }
    try:
        config.given_settings()
    except config.ConfigError as error:
        return {"set": present, "valid": False, "reason": str(error)}
    return {"set": present, "valid": True, "reason": None}


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
