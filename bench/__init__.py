"""The benchmark: one command (`aril bench`, `python -m bench`), one table of aril, its peers and the machine's limits.

In come rows (`rows*.py`, data) and what is installed; out go a table, JSON, Markdown, a plot. See docs/benchmarks.md.
"""
