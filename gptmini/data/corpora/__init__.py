"""Corpora: the texts that a run can train on, as documents in a fixed order."""
