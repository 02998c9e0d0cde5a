"""Ranks of a run, and how work is divided among them."""
