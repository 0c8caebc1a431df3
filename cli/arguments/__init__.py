"""What the arguments of a command mean: its options, and the config that is made of them."""
