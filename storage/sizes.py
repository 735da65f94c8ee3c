"""How sizes are written: decimal (1 GB = 10**9 bytes), as drives are sold."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(n_bytes: float) -> str:
    """`n_bytes` with three figures and a decimal unit: "999 B", "18.8 MB", "510 GB"."""
    value, unit = float(n_bytes), 0
    while unit < len(_UNITS) - 1 and value >= (999.5 if unit else 1000):
        value /= 1000
        unit += 1
    places = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{places}f} {_UNITS[unit]}"
