"""Trainings of the service: states, queue, leases, and the agent that runs them."""
