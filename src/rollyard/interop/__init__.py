"""Rollyard for programs that were written for other projects."""
