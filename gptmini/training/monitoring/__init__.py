"""What a run shows of itself while it trains: callbacks that measure, and loggers that write it down."""
