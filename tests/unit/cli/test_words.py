import pytest

from drumline.cli import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3725, "1 h 02 min"),
        (90_000, "1 d 01 h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(950, "950"), (4_700, "4,700"), (47_000, "47 k"), (135e6, "135 M"), (7.24e9, "7.24 B")],
)
def test_large_counts_are_short(count: float, text: str) -> None:
    assert words.compact(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2.5e12, "2.5 TB")]
)
def test_sizes_are_decimal(count: float, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (12_345.6, "12,346"), (1e-5, "1e-05"), ("nan", "nan"), (None, "–")],
)
def test_metrics_have_four_digits_and_may_be_text_or_absent(value: object, text: str) -> None:
    assert words.number(value) == text


def test_equal_devices_are_counted() -> None:
    listed = [{"uuid": "a", "name": "H100"}, {"uuid": "b", "name": "H100"}, {"name": "cpu"}]
    assert words.devices(listed) == "2 × H100, cpu"
