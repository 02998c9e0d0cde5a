"""The commands: the only room that parses a command line, composes a configuration, and prints."""
