"""Encode chats as tokens: by a Jinja template, or by the built-in template of gptmini."""
