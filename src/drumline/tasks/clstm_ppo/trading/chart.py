"""A report as a picture: what each strategy has made of one unit of money."""

from __future__ import annotations

from pathlib import Path

from drumline.errors import BadInput, MissingPackage
from drumline.tasks.clstm_ppo.trading.report import Report

_WIDTH, _HEIGHT, _DPI = 9.0, 5.0, 130


def draw(report: Report, path: Path) -> None:
    """Write a chart: the mean of each strategy's tries, and their range where there are several.

    Args:
        report: What to draw.
        path: The file, .png, .svg or .pdf.

    Raises:
        MissingPackage: If matplotlib is not installed.
        BadInput: If the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage("matplotlib", "trading", "A chart") from None
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.subplots()
    days = report.days.astype("datetime64[D]").tolist()
    for strategy in report.strategies:
        growth = strategy.values / strategy.values[:, :1]
        tries = len(growth)
        label = f"{strategy.name} (mean and range of {tries})" if tries > 1 else strategy.name
        (line,) = axes.plot(days, growth.mean(axis=0), label=label, linewidth=1.4)
        if tries > 1:
            least, most = growth.min(axis=0), growth.max(axis=0)
            axes.fill_between(days, least, most, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_ylabel("portfolio value, first day = 1")
    axes.set_title(f"{', '.join(report.symbols)}: {report.use} days", fontsize=10)
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    figure.autofmt_xdate()
    try:
        figure.savefig(path, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"The chart {path} cannot be written: {error}.",
            remedy="Give a path that ends in .png, .svg or .pdf.",
        ) from None
