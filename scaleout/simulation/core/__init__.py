"""The event core, compiled: the bits of `engine` and `shared_devices`. See docs/decisions/036-compiled-core.md."""
