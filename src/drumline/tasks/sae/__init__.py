"""Sparse autoencoders and transcoders on cached activations."""
