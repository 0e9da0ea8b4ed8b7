"""Sweeps: a study file to a table of cases, each a job that can be run alone, on this machine or a cluster."""
