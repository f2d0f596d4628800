"""``python -m dtr_alloc``: the command ``dtr-alloc``."""

from dtr_alloc.cli import main

main()
