"""Do the tests notice when a line of the product changes? `make mutants` compares two revisions of them."""
