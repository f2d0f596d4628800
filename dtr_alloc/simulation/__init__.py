"""Simulation of op logs: the runs, the executors that make them, and the presets."""
