"""What families of models have in common: the keys of their workload files, validated, and what each answers."""
