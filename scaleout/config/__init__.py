"""Files to values: units, YAML, names of the shipped files, numbers with their sources."""
