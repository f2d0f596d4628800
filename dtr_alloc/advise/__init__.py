"""Advice: which budget a job could do with, and the page and the files of a run that has ended."""
