"""Advice on the budget of a job, and the page and the files of a run that has ended."""
