"""The partial conversations of failed attempts: what they contain, how they are bounded, how a collector gets them."""
