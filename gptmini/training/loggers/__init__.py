"""Lightning loggers that write metrics.jsonl and TensorBoard events, and print on the console."""
