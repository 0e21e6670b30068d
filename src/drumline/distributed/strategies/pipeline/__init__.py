"""Hybrid's pipeline axis: each rank holds some stages of the model, activations travel on.

`stages` cuts the model, `passes` is what a stage does with one micro-batch, `conveyor` runs torch's
schedules over them, `state` puts the parts together, and `strategy` is what the Trainer sees.
"""
