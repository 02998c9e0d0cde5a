"""Turn a corpus into a prepared folder of tokens, and read batches from it."""
