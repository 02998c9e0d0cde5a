"""The checkpoint of a run: its file, and what a run goes on from."""
