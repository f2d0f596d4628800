"""``dtr-alloc build``: the bridge to PyTorch, compiled ahead of the first job."""

from __future__ import annotations

import click

from dtr_alloc import _autoload


@click.command("build", short_help="Compile the PyTorch bridge ahead of time.")
@click.option(
    "--device", "devices", multiple=True, metavar="D", help="cpu or cuda; may be given twice."
)
def command(devices: tuple[str, ...]) -> None:
    """Compiles the PyTorch bridge ahead of time, for example in a container image, and prints its
    path.

    For each device that the installed PyTorch is built for, or for those given. It needs no device:
    it is for images.
    """
    _autoload.stand_aside()
    from dtr_alloc.torch import bridge

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
