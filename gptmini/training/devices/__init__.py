"""The ranks of a run, and how they divide the work."""
