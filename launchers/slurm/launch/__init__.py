"""Turns a command line and a sweep file into jobs, and submits them."""
