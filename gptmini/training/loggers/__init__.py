"""Lightning loggers that write to files, to TensorBoard and to the console."""
