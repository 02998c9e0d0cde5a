"""From command-line overrides to checked settings: Hydra composes them, and pydantic checks them."""
