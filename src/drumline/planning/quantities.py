"""Numbers as arithmetic shows them: engineering units, three significant digits."""

from __future__ import annotations

_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def flop(value: float) -> str:
    """Floating-point operations: 61.9 GFLOP."""
    return f"{_scaled(value)}FLOP"


def flop_rate(value: float) -> str:
    """Operations a second: 390 TFLOP/s."""
    return f"{_scaled(value)}FLOP/s"


def data(value: float) -> str:
    """Bytes in decimal units: 75.5 MB."""
    return f"{_scaled(value)}B"


def data_rate(value: float) -> str:
    """Bytes a second in decimal units: 450 GB/s."""
    return f"{_scaled(value)}B/s"


def span(seconds: float) -> str:
    """A time span: 0 s, 12.0 us, 0.159 ms, 1.50 s."""
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 1e-4:
        return f"{_digits(seconds * 1e6)} us"
    if abs(seconds) < 1:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def _scaled(value: float) -> str:
    for size, prefix in _STEPS:
        if abs(value) >= size:
            return f"{_digits(value / size)} {prefix}"
    return f"{_digits(value)} "


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
