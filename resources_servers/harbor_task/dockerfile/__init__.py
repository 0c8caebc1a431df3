"""Reads a Dockerfile and turns it into steps that a box can execute."""
