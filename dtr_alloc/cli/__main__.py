"""``python -m dtr_alloc.cli``: the command ``dtr-alloc``."""

from dtr_alloc.cli import main

main()
