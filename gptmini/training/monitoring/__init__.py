"""What a run shows while it trains: callbacks that measure and draw, and loggers that write and print."""
