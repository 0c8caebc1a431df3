"""The whole stack in one event loop with a virtual clock: a seed finds a rare order of events, and replays it."""
