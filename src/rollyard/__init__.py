"""Rollyard: language models play environments, are scored, and are trained."""
