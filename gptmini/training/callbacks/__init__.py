"""Lightning callbacks: checkpoints, samples, pictures, metrics and warnings."""
