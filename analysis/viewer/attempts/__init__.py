"""Shows the failed attempts of a run, each with what had been said until it failed."""
