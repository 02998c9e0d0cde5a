"""Lightning callbacks: checkpoints, samples, pictures, scalars, and reports of bad steps."""
