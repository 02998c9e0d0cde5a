"""The line about a text that is being prepared."""

import pytest

from gptmini.commands.progress import described
from gptmini.data import Progress


@pytest.mark.parametrize(
    ("n_bytes", "share", "seconds", "said"),
    [
        (0, None, 5, "tokenising"),
        (3_000_000, None, 0.5, "tokenising: 3 MB"),
        (3_000_000, 0.25, 0.5, "tokenising: 3 MB, 25%"),
        (3_000_000, 0.25, 2, "tokenising: 3 MB, 25%, 1.5 MB/s, 6 s left"),
        (3_000_000, None, 2, "tokenising: 3 MB, 1.5 MB/s"),
        (4_000_000_000, 0.1, 100, "tokenising: 4,000 MB, 10%, 40.0 MB/s, 15 min left"),
        (4_000_000_000, 0.01, 100, "tokenising: 4,000 MB, 1%, 40.0 MB/s, 2.8 h left"),
        (4_000_000_000, 1.0, 100, "tokenising: 4,000 MB, 100%, 40.0 MB/s, 0 s left"),
    ],
)
def test_progress_tells_what_is_done_how_fast_and_the_time_left(n_bytes, share, seconds, said):
    progress = Progress(phase="tokenising", n_bytes=n_bytes, share=share)
    assert described(progress, seconds=seconds) == said
