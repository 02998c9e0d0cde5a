"""Lightning loggers: files, TensorBoard and the console."""
