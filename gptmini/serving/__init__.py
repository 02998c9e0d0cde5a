"""Chats with a model, the engine that answers many clients at the same time, and the HTTP server."""
