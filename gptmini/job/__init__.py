"""Training jobs: a run from its settings to its end, a sweep of runs, and their console output."""
