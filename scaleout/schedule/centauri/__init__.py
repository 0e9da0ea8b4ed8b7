"""The schedule `centauri`: its partition space, and its operation, layer and model tiers."""
