"""Recurrent reinforcement learning: PPO with a cascaded LSTM (Zou et al., arXiv 2212.02721)."""
