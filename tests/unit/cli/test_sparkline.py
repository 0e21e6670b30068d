import math

import pytest

from drumline.cli.sparkline import BLOCKS, resample, sparkline


def test_the_lowest_value_is_the_lowest_block_and_the_highest_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BLOCKS


def test_resampling_gives_the_mean_of_equal_parts() -> None:
    assert resample([1, 3, 10, 20, -4, 4], 3) == [2, 15, 0]


def test_parts_cover_every_value_once_when_they_do_not_divide() -> None:
    points = resample([1.0] * 10, 4)
    assert points == [1.0] * 4
    # 10 values over 4 parts: edges 0, 2, 5, 7, 10.
    assert resample(list(range(10)), 4) == [0.5, 3.0, 5.5, 8.0]


def test_fewer_values_than_columns_are_not_stretched() -> None:
    assert len(sparkline([1.0, 2.0], 40)) == 2


def test_values_that_are_not_finite_do_not_hide_the_others() -> None:
    assert sparkline([0.0, math.nan, 7.0, math.inf], 4) == f"{BLOCKS[0]} {BLOCKS[7]} "
    assert resample([math.nan, 4.0, math.inf, math.nan], 2)[0] == 4.0
    assert math.isnan(resample([math.nan, 4.0, math.inf, math.nan], 2)[1])


def test_a_constant_curve_has_one_height() -> None:
    assert len(set(sparkline([5.0] * 9, 9))) == 1


def test_a_range_wider_than_a_float_is_drawn() -> None:
    assert sparkline([-1.7e308, 1.7e308], 2) == BLOCKS[0] + BLOCKS[7]


def test_no_value_is_no_text() -> None:
    assert sparkline([], 10) == ""


def test_no_width_is_refused() -> None:
    with pytest.raises(ValueError, match="0 wide"):
        resample([1.0], 0)
