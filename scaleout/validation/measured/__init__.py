"""Predictions held against measured runs: rows of files to workloads, simulated and compared.

`compare.FAMILIES` is the one table: kinds of rows that are known, each with the keys that it needs and what turns a
row into something to predict. `compare.compare_files` reads, predicts and sums up. Nothing is fitted here.
"""
