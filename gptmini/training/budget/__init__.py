"""The choices of budget=: a scaling law, the search for model sizes, and timing of steps."""
