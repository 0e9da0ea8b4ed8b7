"""Plans of a job: what each takes, evaluated block by block, and the best of all."""
