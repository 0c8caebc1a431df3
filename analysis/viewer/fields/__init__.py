"""Any field of a row as a column, a filter, a facet and a way to group; the fields that explain a reward."""
