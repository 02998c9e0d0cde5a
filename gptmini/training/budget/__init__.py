"""What budget= chooses: a law of the loss, the search for sizes, and a stopwatch."""
