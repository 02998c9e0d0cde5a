"""A run in words, tables, pictures and one HTML page, and TensorBoard's event files read again."""
