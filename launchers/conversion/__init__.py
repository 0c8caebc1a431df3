"""Conversion of DCP checkpoints to Hugging Face format, once for each content and safe under any race.

`cache.py` finds, waits for or makes a conversion and needs no torch; `huggingface.py` converts. docs/slurm.md describes
the guarantees.
"""
