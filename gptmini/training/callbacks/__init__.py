"""Lightning callbacks: what a run saves, shows and measures."""
