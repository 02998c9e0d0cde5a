"""Training with Lightning: module, data, callbacks, loggers, checkpoints. The only room that imports lightning."""
