"""Families of models: one file each, with the keys of its workload files and what it writes on the autograd tape."""
