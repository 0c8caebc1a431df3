"""Conversion of DCP checkpoints to Hugging Face format, once for each content. docs/slurm.md has the guarantees."""
