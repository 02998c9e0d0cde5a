"""From text to (tokens, targets): corpora, the token store, and batch order as a pure function."""
