"""Measures of hand-made series, and what a report says and does not say."""

import math
from pathlib import Path

import numpy as np
import pytest

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.trading.chart import draw
from drumline.tasks.clstm_ppo.trading.measures import Spread, measure
from drumline.tasks.clstm_ppo.trading.report import Report, Strategy


def of(values: list[float], traded: list[float] | None = None) -> dict[str, float]:
    nothing = [0.0] * (len(values) - 1)
    return measure(np.array(values), np.array(traded or nothing)).as_dict()


def test_returns_by_arithmetic() -> None:
    found = of([100.0, 110.0, 99.0, 108.9])
    assert found["cumulative_return"] == pytest.approx(0.089)
    assert found["annual_return"] == pytest.approx(1.089**84 - 1)
    mean, deviation = 0.1 / 3, math.sqrt((2 * (0.1 - 0.1 / 3) ** 2 + (-0.1 - 0.1 / 3) ** 2) / 2)
    assert found["annual_volatility"] == pytest.approx(deviation * math.sqrt(252))
    assert found["sharpe"] == pytest.approx(mean / deviation * math.sqrt(252))


@pytest.mark.parametrize(
    ("values", "drawdown"),
    [
        ([100, 120, 90, 130, 117], 0.25),  # 120 to 90, not 130 to 117
        ([100, 80, 120, 90, 200, 110], 0.45),  # a later peak counts
        ([100, 101, 102], 0.0),
        ([100, 50, 25], 0.75),  # from the peak, not from day to day
    ],
)
def test_drawdown_is_the_largest_fall_from_a_running_peak(
    values: list[float], drawdown: float
) -> None:
    assert of(values)["max_drawdown"] == pytest.approx(drawdown)


def test_turnover_is_of_a_year() -> None:
    assert of([100.0, 200.0, 200.0], [50.0, 20.0])["turnover"] == pytest.approx(0.3 * 252)


def test_what_does_not_move_has_no_sharpe_ratio() -> None:
    found = of([5.0, 5.0, 5.0])
    assert math.isnan(found["sharpe"])
    assert found["annual_volatility"] == found["max_drawdown"] == found["annual_return"] == 0


def test_a_portfolio_that_lost_all_stays_lost() -> None:
    found = of([100.0, 50.0, 0.0, 0.0], [10.0, 10.0, 0.0])
    assert found["cumulative_return"] == -1
    assert found["annual_return"] == -1
    assert found["max_drawdown"] == 1
    assert found["annual_volatility"] == pytest.approx(0.5 * math.sqrt(252))


def test_spread_of_one_is_unknown() -> None:
    assert math.isnan(Spread.of(np.array([0.4])).deviation)
    found = Spread.of(np.array([1.0, 2.0, 4.0]))
    assert (found.mean, found.least, found.most, found.number) == pytest.approx((7 / 3, 1, 4, 3))
    assert found.deviation == pytest.approx(math.sqrt(7 / 3))


def report() -> Report:
    days = np.datetime64("2020-01-01") + np.arange(3)
    several = Strategy("policy", np.array([[1, 2, 3.0], [1, 1, 1.0]]), np.zeros((2, 2)))
    one = Strategy("buy and hold", np.array([[1, 1.5, 1.2]]), np.zeros((1, 2)))
    return Report(days, "test", ("A", "B"), 0.001, (several, one), ("A: a note",))


def test_a_report_says_how_often_each_strategy_was_tried() -> None:
    told = report().as_dict()
    policy = told["strategies"]["policy"]
    assert policy["tries"] == 2
    assert policy["measures"]["cumulative_return"] == {
        "mean": 1.0,
        "deviation": pytest.approx(math.sqrt(2)),
        "least": 0.0,
        "most": 2.0,
    }
    held = told["strategies"]["buy and hold"]["measures"]["cumulative_return"]
    assert held["deviation"] is None
    caption = report().caption()
    assert caption.startswith("2 steps on test days, 2020-01-01 to 2020-01-03, 2 stocks")
    assert "one try has none" in caption


def test_a_chart_is_a_picture(tmp_path: Path) -> None:
    draw(report(), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match="cannot be written"):
        draw(report(), tmp_path / "chart.nonsense")
    with pytest.raises(BadInput, match="cannot be written"):
        draw(report(), tmp_path / "absent" / "chart.png")
