"""Jobs of PyTorch's frameworks, as their users write them, under budgets: see __main__.py."""
