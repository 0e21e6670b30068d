"""Thin routers, one module for each part of the API."""
