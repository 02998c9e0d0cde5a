"""One job of training: from settings to a finished run, and what it prints."""
