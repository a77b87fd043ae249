"""A language model of words: an LSTM reads Python's manual, in rows of text side by side.

Run it with `python examples/word_language_model.py`. Its state goes on from batch to batch.
"""

import re
from collections import Counter
from pydoc_data.topics import topics

from torch import Tensor

from minilearn.all import *


class WordModel(nn.Module):
    def __init__(self, n_words: int, n: int) -> None:
        super().__init__()
        self.embed, self.drop, self.state = nn.Embedding(n_words, n), nn.Dropout(0.2), None
        self.lstm, self.out = nn.LSTM(n, n, batch_first=True), nn.Linear(n, n_words)
        self.out.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden, (h, c) = self.lstm(self.drop(self.embed(words)), self.state)
        self.state = h.detach(), c.detach()
        return self.out(self.drop(hidden))  # (B, T) -> (B, T, n_words)


def corpus(n: int, n_kinds: int) -> Tensor:
    """The first `n` words of the manual as numbers; 0 is any not among the `n_kinds` commonest."""
    words = re.findall(r"\w+|[^\w\s]", " ".join(topics.values()).lower())[:n]
    number = {word: i for i, (word, _) in enumerate(Counter(words).most_common(n_kinds - 1), 1)}
    return tensor([number.get(word, 0) for word in words])


def batches(ids: Tensor, n_rows: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """Cut into rows, and those into batches: words and the words that follow, (B, T) each."""
    rows = ids[: len(ids) // n_rows * n_rows].view(n_rows, -1)
    return list(zip(rows[:, :-1].split(length, 1), rows[:, 1:].split(length, 1), strict=True))


def loss_func(preds: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(preds.mT, words)


def main(epochs: int = 6, n: int = 60_000, n_kinds: int = 2000, n_hidden: int = 128) -> Learner:
    set_seed(1111)
    train, valid = corpus(n, n_kinds).split([n - n // 10, n // 10])
    dls = batches(train, 20, 35), batches(valid, 10, 35)
    sched = PlateauCB("valid_loss", factor=0.25, patience=0)
    cbs = [TrainCB(), DeviceCB(), MetricsCB(Perplexity()), ClipGradCB(0.25), sched, ProgressCB()]
    model = WordModel(n_kinds, n_hidden)
    learn = Learner(model, dls, loss_func, 5.0, cbs, count=lambda batch: batch[1].numel())
    learn.on("before_epoch", lambda learn: setattr(learn.model, "state", None))
    learn.fit(epochs)
    return learn


if __name__ == "__main__":
    print(main().history)
