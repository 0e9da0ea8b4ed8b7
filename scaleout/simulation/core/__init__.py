"""The event core, compiled: the bits of `engine`, shared devices and links. See docs/decisions/036-compiled-core.md."""
