"""Print topics, tables and progress lines. This package knows strings and rich only."""
