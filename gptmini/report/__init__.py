"""Reports on runs as text, tables, charts, an HTML page or CSV. The values come from metrics.jsonl and config.yaml."""
