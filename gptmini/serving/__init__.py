"""Talking to a model: chats, the engine that answers many clients at once, and the server."""
