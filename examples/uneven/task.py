"""What the examples of this folder train on: sequences of digits, of which a small transformer finds the largest."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

LENGTH = 24
DIGITS = 10


def sequences(samples: int) -> TensorDataset:
    """Return sequences of digits (samples, LENGTH), most of them small, and the largest digit of each (samples,)."""
    random = torch.Generator().manual_seed(0)
    limit = torch.randint(1, DIGITS + 1, (samples, 1), generator=random)
    digits = (torch.rand(samples, LENGTH, generator=random) * limit).long()
    return TensorDataset(digits, digits.amax(dim=1))


class Transformer(nn.Module):
    """Two layers; without dropout, which would differ with the number of workers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(DIGITS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, DIGITS)

    def forward(self, digits: Tensor) -> Tensor:
        """Return logits (batch, DIGITS) for sequences (batch, LENGTH)."""
        hidden = self.embedding(digits)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(dim=1))
