"""The event core: what `engine` and `shared_devices` do, compiled, over columns; the same bits.

See docs/models/event-engine.md and docs/decisions/036-compiled-core.md.
"""
