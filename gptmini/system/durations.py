"""Write durations for people."""


def duration(seconds: float) -> str:
    """Format a number of seconds with its two largest units, for example 1 h 02 min, 3 min 05 s or 12 s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {seconds:02d} s"
    return f"{seconds} s"
