"""Whether results of PyTorch's operators, modules and optimizers can be evicted; if not, why."""
