"""Trading as an environment: market data, indicators, portfolios, options, and honest reports."""
