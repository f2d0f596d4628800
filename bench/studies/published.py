"""The op logs that the DTR paper published, from a folder that the user gives.

They lie in the paper's repository (uwsampl/dtr-prototype, data of simrd) without a license, so
they are not part of this one.
"""

from __future__ import annotations

from bench.studies.study import Options, Unavailable
from dtr_alloc.oplog import Program, compile_log

NAMES = (
    *("resnet32", "densenet121", "inceptionv4", "unet"),
    *("transformer", "lstm", "treelstm", "unroll_gan"),
)
THRASHING = 2.0
"""As in the paper: more compute than this times the compute without a budget is of no use."""


def published_logs(options: Options) -> dict[str, Program]:
    """The logs by name, which is their label, too; for a smoke run two small ones.

    Raises Unavailable.
    """
    names = ("resnet32", "unet") if options.smoke else NAMES
    if options.logs is None:
        raise Unavailable("needs --logs FOLDER, with the logs that the DTR paper published")
    found = {}
    for name in names:
        paths = sorted(options.logs.glob(f"{name}.log*"))
        if len(paths) != 1:
            raise Unavailable(
                f"--logs {options.logs} has {len(paths)} files {name}.log*; allowed: one"
            )
        found[name] = compile_log(str(paths[0]))
        found[name].path = name
    return found
