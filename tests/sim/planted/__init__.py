"""Bugs of the product, one patch each, that the simulator must find: rows are lost, fsyncs are missing, and so on."""
