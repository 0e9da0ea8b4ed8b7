"""The event core, compiled: the bits of `engine`, its timers and links. See docs/decisions/036-compiled-core.md."""
