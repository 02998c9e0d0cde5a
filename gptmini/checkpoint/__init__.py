"""Checkpoints: the file of weights, and the training state that a run resumes from."""
