"""The whole stack in one event loop with a virtual clock: rare orders of events are found by a seed, and replayed by it."""
