"""Numbers as text, with a unit that suits them."""


def amount(num_bytes: float) -> str:
    """Bytes in a suitable unit."""
    if not num_bytes:
        return "0"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024 or unit == "GiB":
            return f"{num_bytes:,.0f} {unit}" if unit == "bytes" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Seconds as text, such as 3.14 s or 5 min 2 s."""
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def thousands(value: float) -> str:
    """A number with three digits and a prefix, such as 1.25 M."""
    for prefix in ("", " k", " M"):
        if abs(value) < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g} G"


def decimal(value: float | None, digits: int = 4) -> str:
    """A number with so many digits after the point; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A share of one in percent."""
    return "–" if share is None else f"{100 * share:.0f} %"
