"""Measuring: what a config costs on this machine, traced or timed."""
