"""Reports on runs as text, tables, charts, an HTML page or CSV, read from metrics.jsonl and config.yaml."""
