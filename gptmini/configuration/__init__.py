"""From what a user types to checked settings; Hydra composes, and pydantic checks."""
