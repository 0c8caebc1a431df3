"""Data sets: mixed, filtered, ordered, checked. What a collection or a trainer is given to play."""
