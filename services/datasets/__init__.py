"""Datasets: reading, filtering, mixing, ordering and validating the rows that collections and trainers use."""
