"""Blocks of text below each other, of which one is current: a conversation, or findings."""
