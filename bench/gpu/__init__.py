"""What only a GPU can show, measured by one command: ``make gpu`` (docs/guides/cuda.md).

``python -m bench.gpu`` runs the parts one after another, each in a process of its own under a time
limit, and writes what each says as soon as it says it. ``--dry-run`` walks through the same code on
the CPU, in tiny sizes, where a typing error costs seconds of nobody's GPU.
"""
