"""What runs in the jail: the standard library only, because nothing else can be seen from there."""
