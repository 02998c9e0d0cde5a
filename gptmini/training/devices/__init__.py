"""The ranks of a run, and how the ranks divide the work among their devices."""
