"""From rows as they were read to whole prices: what is repaired, what is refused, what is noted.

Repaired, with a note: rows out of order, rows written twice with the same numbers, missing open,
high, low or volume, gaps of a few days (the last close is kept), stocks that begin later or end
earlier than others (only the days that all have are used). Refused: prices that are negative, zero
or infinite, one day of a stock with two prices, longer gaps, and splits that were not adjusted.
Only noted: closes outside the day's high and low.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from drumline.errors import DataError
from drumline.tasks.clstm_ppo.trading.prices import PRICES, Array, Days, Prices, Table
from drumline.tasks.clstm_ppo.trading.splits import find_splits, undo_splits

Splits = Literal["refuse", "adjust", "keep"]
LONGEST_GAP_DAYS = 5
_MANY = 5
"""So many rows are named in one message."""


def clean_prices(
    table: Table, symbols: list[str] | None = None, splits: Splits = "refuse"
) -> Prices:
    """Whole prices.

    Where there is an adjusted close, all prices of the day are brought to it.

    Args:
        table: Rows in any order.
        symbols: Stocks to use; None: all.
        splits: What to do where a close jumps like a split; "adjust" brings earlier prices to
            later shares, "keep" takes the jump for a return.

    Raises:
        DataError: For what is refused; the message names the row.
    """
    notes: list[str] = []
    table = _only(table, symbols)
    _refuse_bad_prices(table)
    table = _sorted(table, notes)
    table = _without_repeats(table, notes)
    names = tuple(sorted(set(table.symbols.tolist())))
    days, panels = _panels(table, names)
    adjusted = panels.pop("adjusted", None)
    days, panels, adjusted = _common_days(table, names, days, panels, adjusted, notes)
    _fill(table, names, days, panels, adjusted, notes)
    if adjusted is not None:
        factor = adjusted / panels["close"]
        panels |= {name: panels[name] * factor for name in PRICES}
    else:
        _handle_splits(table, names, days, panels, splits, notes)
    _note_odd(names, days, panels, notes)
    return Prices(days, names, **panels, notes=tuple(notes))


def _only(table: Table, symbols: list[str] | None) -> Table:
    if symbols is None:
        return table
    unknown = sorted(set(symbols) - set(table.symbols.tolist()))
    if unknown:
        raise DataError(
            f"{table.source} has no {', '.join(unknown)}; it has "
            f"{', '.join(sorted(set(table.symbols.tolist())))}.",
            remedy="Correct task.environment.symbols.",
        )
    return table.chosen(np.isin(table.symbols, symbols))


def _refuse_bad_prices(table: Table) -> None:
    for name, values in table.columns.items():
        least_allowed = values >= 0 if name == "volume" else values > 0
        bad = ~(np.isnan(values) | (least_allowed & np.isfinite(values)))
        if bad.any():
            rows = np.flatnonzero(bad)
            shown = "; ".join(f"{table.row(i)}: {values[i]:g}" for i in rows[:_MANY])
            raise DataError(
                f"{table.source} has {len(rows)} impossible values of {name}: {shown}"
                f"{'; ...' if len(rows) > _MANY else ''}.",
                remedy="Correct these rows, or leave the field empty where nothing is known.",
                rows=len(rows),
            )


def _sorted(table: Table, notes: list[str]) -> Table:
    order = np.lexsort((table.lines, table.days, table.symbols))
    for name in sorted(set(table.symbols.tolist())):
        days = table.days[table.symbols == name]
        if (np.diff(days) < np.timedelta64(0)).any():
            notes.append(f"{name}: its days were not in order and have been sorted")
    return table.chosen(order)


def _without_repeats(table: Table, notes: list[str]) -> Table:
    """One row for each stock and day. Rows are sorted."""
    again = (table.symbols[1:] == table.symbols[:-1]) & (table.days[1:] == table.days[:-1])
    if not again.any():
        return table
    same = np.ones_like(again)
    for values in table.columns.values():
        same &= (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    if (again & ~same).any():
        row = int(np.flatnonzero(again & ~same)[0])
        raise DataError(
            f"{table.source} has two different rows for one day: {table.row(row)} and "
            f"{table.row(row + 1)}.",
            remedy="Remove one of them.",
        )
    notes.append(
        f"{again.sum()} rows were there twice, for example {table.row(int(again.argmax()))}"
    )
    return table.chosen(np.concatenate([[True], ~again]))


def _panels(table: Table, names: tuple[str, ...]) -> tuple[Days, dict[str, Array]]:
    """Each column as [D, S] over all days that any stock has; NaN where there is no row."""
    days, day = np.unique(table.days, return_inverse=True)
    stock = np.searchsorted(np.array(names), table.symbols)
    panels = {}
    for name in (*PRICES, "volume", "adjusted"):
        if name == "adjusted" and name not in table.columns:
            continue
        panels[name] = np.full((len(days), len(names)), np.nan)
        if name in table.columns:
            panels[name][day, stock] = table.columns[name]
    return days, panels


def _common_days(
    table: Table,
    names: tuple[str, ...],
    days: Days,
    panels: dict[str, Array],
    adjusted: Array | None,
    notes: list[str],
) -> tuple[Days, dict[str, Array], Array | None]:
    there = np.isfinite(panels["close"])
    if not there.any(axis=0).all():
        nothing = names[int((~there.any(axis=0)).argmax())]
        raise DataError(
            f"{table.source} has no close of {nothing}.",
            remedy="Leave it out with task.environment.symbols.",
        )
    first = there.argmax(axis=0)
    last = len(days) - 1 - there[::-1].argmax(axis=0)
    begin, end = int(first.max()), int(last.min()) + 1
    if begin >= end:
        raise DataError(
            f"{table.source} has no day that all of {', '.join(names)} have.",
            remedy="Choose stocks that were traded at the same time: task.environment.symbols.",
        )
    if begin:
        late = names[int(first.argmax())]
        notes.append(f"the {begin} days before {days[begin]}, when {late} begins, are left out")
    if end < len(days):
        early = names[int(last.argmin())]
        notes.append(
            f"the {len(days) - end} days after {days[end - 1]}, when {early} ends, are left out"
        )
    cut = {name: values[begin:end] for name, values in panels.items()}
    return days[begin:end], cut, None if adjusted is None else adjusted[begin:end]


def _fill(
    table: Table,
    names: tuple[str, ...],
    days: Days,
    panels: dict[str, Array],
    adjusted: Array | None,
    notes: list[str],
) -> None:
    """Close gaps by the last close, and put the close where another price is missing."""
    missing = np.isnan(panels["close"])
    if adjusted is not None:
        missing |= np.isnan(adjusted)
    for stock, name in enumerate(names):
        longest, begin = _longest_run(missing[:, stock])
        if longest > LONGEST_GAP_DAYS:
            raise DataError(
                f"{table.source} lacks {longest} days of {name} in a row, from {days[begin]} to "
                f"{days[begin + longest - 1]}, on which others have prices.",
                remedy="Fill them, or leave the stock out with task.environment.symbols.",
                symbol=name,
                days=longest,
            )
        if longest:
            notes.append(
                f"{name}: {missing[:, stock].sum()} missing days keep the close before them, "
                f"for example {days[begin]}"
            )
    panels["close"][:] = _carried_on(panels["close"], missing)
    if adjusted is not None:
        adjusted[:] = _carried_on(adjusted, missing)
    panels["volume"][missing] = 0
    np.nan_to_num(panels["volume"], copy=False)
    known = [name for name in PRICES if name in table.columns]
    for name in PRICES[:-1]:
        empty = np.isnan(panels[name]) | missing
        if name in known and (empty & ~missing).any():
            notes.append(f"{(empty & ~missing).sum()} missing values of {name} are the close")
        panels[name][empty] = panels["close"][empty]


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """Length and begin of the longest run of true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    place = int(lengths.argmax())
    return int(lengths[place]), int(begins[place])


def _carried_on(values: Array, missing: NDArray[np.bool_]) -> Array:
    rows = np.where(missing, 0, np.arange(len(values))[:, None])
    carried: Array = np.take_along_axis(values, np.maximum.accumulate(rows, axis=0), axis=0)
    return carried


def _handle_splits(
    table: Table,
    names: tuple[str, ...],
    days: Days,
    panels: dict[str, Array],
    splits: Splits,
    notes: list[str],
) -> None:
    opens = panels["open"] if "open" in table.columns else None
    found = find_splits(panels["close"], opens)
    if not found:
        return
    told = [split.sentence(names, days) for split in found]
    if splits == "refuse":
        raise DataError(
            f"{table.source} has prices that jump like a split that was not adjusted: "
            f"{'; '.join(told[:_MANY])}{'; ...' if len(told) > _MANY else ''}.",
            remedy="Set task.environment.splits to adjust, or to keep if these were real moves.",
            splits=len(told),
        )
    if splits == "adjust":
        for name in PRICES:
            panels[name][:] = undo_splits(panels[name], found)
        panels["volume"][:] = undo_splits(panels["volume"], found, shares=True)
    verb = "adjusted" if splits == "adjust" else "kept as a return"
    notes += [f"{sentence}: {verb}" for sentence in told]


def _note_odd(
    names: tuple[str, ...], days: Days, panels: dict[str, Array], notes: list[str]
) -> None:
    close, slack = panels["close"], 1e-6
    odd = close > panels["high"] * (1 + slack)
    odd |= close < panels["low"] * (1 - slack)
    if odd.any():
        day, stock = (int(place[0]) for place in np.nonzero(odd))
        notes.append(
            f"{odd.sum()} closes lie outside the day's low and high, for example {names[stock]} "
            f"on {days[day]}"
        )
