"""Parts of several pages: the line for typing, choices, the list of keys, output that is safe for a terminal."""
