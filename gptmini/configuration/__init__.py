"""Turn command-line overrides into settings. Hydra composes the settings, and pydantic checks them."""
