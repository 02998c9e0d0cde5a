"""A run in words, tables, pictures, one HTML page or CSV, read from its metrics.jsonl and config.yaml."""
