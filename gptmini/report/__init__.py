"""What a run shows, put into words, tables and pictures, and read again from its event files."""
