"""Measuring: what the hardware gives, whether a machine is fit for training, how a run scales."""
