"""Training jobs. A job trains one run or a sweep of runs, and prints lines on the console."""
