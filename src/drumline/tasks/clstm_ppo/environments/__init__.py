"""Worlds a policy acts in. All environments of a rank are one object with tensors on its device."""
