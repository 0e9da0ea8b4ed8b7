"""Results to numbers: breakdowns, critical paths, efficiency, pipelines."""
