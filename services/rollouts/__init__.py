"""The files of a collection: keys, locks, the manifest, and changes made to them by other programs."""
