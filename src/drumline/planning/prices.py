"""What a device costs an hour, from a file that a user edits. A price that is not there is said to
be missing; nothing is guessed.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, NonNegativeFloat

from drumline.config import Section
from drumline.config.load import read_mapping, validate
from drumline.planning.profile import plain_name

PRICES = Path(__file__).with_name("prices.yaml")


class Price(Section):
    """The price of one kind of device."""

    devices: list[str] = Field(description="names of the device, as drivers or profiles tell them")
    per_hour: NonNegativeFloat = Field(description="price of one device for an hour")
    vendor: str = Field(description="who asks it, and for what")
    source: str = Field(description="where it is published, or whose contract it is")
    date: str = Field(description="day it was read, as 2026-01-31")


class PriceList(Section):
    """Prices in one currency. The first entry that names a device counts."""

    currency: str = Field("USD", description="of all prices")
    prices: list[Price] = Field([], description="one entry a kind of device and vendor")

    def of(self, *names: str | None) -> Price | None:
        """The price of a device that goes by these names; None if it is missing."""
        wanted = {plain_name(name) for name in names if name}
        for price in self.prices:
            if wanted & {plain_name(name) for name in price.devices}:
                return price
        return None


def load_prices(path: Path | None = None) -> PriceList:
    """The prices of a file; by default of the one that comes with the package.

    Raises:
        BadInput: If the file is missing or unreadable.
        ConfigError: If it has wrong keys.
    """
    path = path or PRICES
    return validate(PriceList, read_mapping(path), str(path))
