"""From a corpus to a prepared folder: read, encoded in tasks, and put together."""

from gptmini.data.preparation.preparing import open_prepared, prepare
from gptmini.data.preparation.watching import Progress, Watcher

__all__ = ["Progress", "Watcher", "open_prepared", "prepare"]
