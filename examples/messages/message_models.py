"""Models of token ids, with embeddings of their own: the mean of the words, and a small recurrent network."""

from torch import Tensor, nn

IDS = 64  # as make_messages.py has them


class Bag(nn.Module):
    """The mean of the words' embeddings."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(IDS, 32)
        self.head = nn.Linear(32, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(dim=1))


class Reader(nn.Module):
    """A GRU that reads one word after the other; the mean of its states."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(IDS, 16)
        self.reads = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.reads(self.words(ids))[0].mean(dim=1))


def bag(outputs: int) -> nn.Module:
    return Bag(outputs)


def reader(outputs: int) -> nn.Module:
    return Reader(outputs)
