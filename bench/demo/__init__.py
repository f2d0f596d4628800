"""Two real jobs trained under smaller and smaller budgets; see ``python -m bench.demo --help``."""
