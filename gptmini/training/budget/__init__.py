"""Choose the model sizes and the number of steps for budget=, by a scaling law and measured step times."""
