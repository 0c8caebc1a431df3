"""Code that runs in the jail. It uses only the standard library, because nothing else is visible there."""
