"""Code that runs in the jail. It uses only the standard library, because no other packages are visible there."""
