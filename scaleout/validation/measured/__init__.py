"""Predictions compared with measured runs: rows of files become workloads, which are simulated. Nothing is fitted here.

`compare.FAMILIES` is the table of known kinds of rows; `compare.compare_files` reads, predicts and sums up.
"""
