"""ng_browse: its pages with real keys, in a terminal that exists only in memory."""
