"""Features of a window of observations: the first stage of the cascade."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drumline.tasks.clstm_ppo.pieces import Cuts
from drumline.tasks.clstm_ppo.sequences import Recurrent, Way

_UNCUT = Cuts(())


class WindowFeatures(nn.Module):
    """An LSTM over the latest W observations of an episode, from its zero state each time.

    Args:
        inputs: Numbers in an observation, F.
        length: Observations in a full window, W.
        size: Features, D.
        heads: Heads of an attention of the last step over all steps; 0: the last step is all.
    """

    def __init__(self, inputs: int, length: int, size: int, heads: int) -> None:
        super().__init__()
        self.length = length
        self.lstm = Recurrent(inputs, size)
        self.attention = nn.MultiheadAttention(size, heads) if heads else None

    def forward(self, windows: Tensor, lengths: Tensor, way: Way) -> Tensor:
        """Features [N, D].

        Args:
            windows: [W, N, F], the oldest observation first; what stands after a window's length
                is not looked at.
            lengths: int64 [N], at least 1.
            way: How the LSTM goes over the steps.
        """
        steps, count, _ = windows.shape
        no_starts = torch.zeros(steps, count, dtype=torch.bool, device=windows.device)
        read = self.lstm(windows, no_starts, self.lstm.initial(count), _UNCUT, way)
        last = read.gather(0, (lengths - 1).view(1, -1, 1).expand(1, -1, read.size(2)))
        if self.attention is None:
            only: Tensor = last[0]
            return only
        beyond = torch.arange(steps, device=windows.device) >= lengths.unsqueeze(1)
        attended, _ = self.attention(last, read, read, key_padding_mask=beyond, need_weights=False)
        found: Tensor = (last + attended)[0]
        return found


def windows_of(
    observations: Tensor, starts: Tensor, history: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """The window that ends at each step, without what was before the step's episode.

    Args:
        observations: [L, n, F].
        starts: bool [L, n], whether a step is the first of an episode.
        history: [W - 1, n, F], the observations before.
        seen: int64 [n], how many of the last of these are of the episode that goes on.

    Returns:
        Windows [W, L * n, F], filled from the front, and their lengths, int64 [L * n].
    """
    length, count, width = observations.shape
    size = len(history) + 1
    steps = torch.arange(length, device=observations.device).unsqueeze(1)
    began = torch.where(starts, steps, -seen).cummax(dim=0).values
    lengths = (steps - began + 1).clamp(max=size)
    all_windows = torch.cat([history, observations]).unfold(0, size, 1)  # [L, n, F, W]
    places = torch.arange(size, device=observations.device)
    taken = (places + size - lengths.unsqueeze(-1)).clamp(max=size - 1)  # [L, n, W]
    taken = taken.unsqueeze(2).expand(-1, -1, width, -1)
    windows = all_windows.gather(3, taken).permute(3, 0, 1, 2)
    return windows.reshape(size, length * count, width), lengths.reshape(-1)
