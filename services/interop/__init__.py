"""Lets other projects' programs use Rollyard's environments, over the protocols that they speak."""
