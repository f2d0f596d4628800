"""How a command ends for a file that it cannot use."""

from __future__ import annotations

import click


class InputError(click.ClickException):
    """A file is not what the command needs, or takes more memory than there is. The exit status is
    that of wrong options: the command was asked for something that it cannot do."""

    exit_code = 2
