"""Write numbers for people."""


def duration(seconds: float) -> str:
    """Format a number of seconds with its two largest units, for example 1 h 02 min, 3 min 05 s or 12 s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {seconds:02d} s"
    return f"{seconds} s"


def with_prefix(number: float, unit: str) -> str:
    """Return a number from 0 to 10^15 with an SI prefix, such as 7.1 MFLOP, with 1 to 3 digits before the point."""
    for prefix in ("", "k", "M", "G"):
        # From 999.95 on, rounding would give 1000.0.
        if number < 999.95:
            return f"{number:.1f} {prefix}{unit}"
        number /= 1000
    return f"{number:.1f} T{unit}"


def rounded(passes: float) -> str:
    """Return a number of passes with two decimals, or with two significant digits if it is below 0.1."""
    return f"{passes:,.2f}" if passes >= 0.1 else f"{passes:.2g}"
