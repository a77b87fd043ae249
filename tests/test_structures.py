"""Any structure from training to export: several inputs, dicts, sequences, a model of transformers.

The expected predictions are made by calling the model by hand.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from minilearn import (
    DataLoaders,
    Learner,
    MetricsCB,
    Pipeline,
    TrainCB,
    accuracy,
    load_learner,
)
from tests.toys import linear


def trained(model, dl, loss_func, cbs, epochs=2, lr=0.05):
    """A learner after a short fit; its loss fell."""
    cbs = [*cbs, MetricsCB()]
    learn = Learner(model, (dl, dl), loss_func, lr, cbs, optim.Adam)
    learn.fit(epochs)
    assert learn.history["valid_loss"][-1] < learn.history["valid_loss"][0]
    return learn


def by_hand(learn, call):
    """What the model gives in eval mode."""
    learn.model.eval()
    with torch.no_grad():
        return call(learn.model)


# ---- several inputs ----


class TwoEyes(nn.Module):
    """Scores of two inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = linear(0, 3, 4), linear(1, 2, 4)

    def forward(self, left, right):
        return self.left(left) * self.right(right)


def test_several_inputs_are_trained_predicted_and_exported(tmp_path):
    left, right, y = torch.randn(10, 3), torch.randn(10, 2), torch.randint(0, 4, (10,))
    dl = DataLoader(TensorDataset(left, right, y), 4, shuffle=True)
    learn = trained(TwoEyes(), dl, F.cross_entropy, [TrainCB(n_inp=2)])
    expected = by_hand(learn, lambda model: model(left, right))
    inputs, preds, targs = learn.get_preds(with_inputs=True)
    torch.testing.assert_close(preds, expected)
    assert torch.equal(inputs[1], right) and torch.equal(targs, y)
    again = load_learner(learn.export(tmp_path / "m", pt2=True), "cpu", trust=True)
    found = again.infer([(left[i], right[i]) for i in range(3)])
    torch.testing.assert_close(torch.stack([p.output for p in found]), expected[:3])


# ---- dict batches ----


def test_dict_batches_are_trained_predicted_and_measured():
    rows = [{"a": torch.randn(3), "b": torch.randn(2), "y": i % 4} for i in range(10)]
    dl = DataLoader(rows, 4, shuffle=True)
    cb = TrainCB(inputs={"left": "a", "right": "b"}, targets="y")
    learn = trained(TwoEyes(), dl, F.cross_entropy, [cb])
    a, b = (torch.stack([row[key] for row in rows]) for key in "ab")
    inputs, preds, targs = learn.get_preds(with_inputs=True)
    torch.testing.assert_close(preds, by_hand(learn, lambda model: model(a, b)))
    assert torch.equal(inputs["right"], b) and targs.tolist() == [i % 4 for i in range(10)]
    assert learn.validate().loss == pytest.approx(F.cross_entropy(preds, targs).item())
    one = learn.infer({"a": a[5], "b": b[5]})  # what is to be predicted has no target
    torch.testing.assert_close(one.output, preds[5])


def test_a_batch_that_lacks_a_target_in_training_is_an_error_that_names_it():
    batch = {"a": torch.randn(2, 3), "b": torch.randn(2, 2)}
    cb = TrainCB(inputs={"left": "a", "right": "b"}, targets="y")
    with pytest.raises(KeyError, match="the batch has no 'y'"):
        Learner(TwoEyes(), ([batch], None), F.cross_entropy, cbs=[cb]).fit(1)


# ---- images of logits ----


def test_segmentation_gives_a_class_for_each_pixel():
    x = torch.randn(6, 3, 8, 8)
    y = (x[:, 0] > 0).long()
    learn = trained(nn.Conv2d(3, 2, 1), DataLoader(TensorDataset(x, y), 4), _by_pixel, [TrainCB()])
    preds, targs, decided = learn.get_preds(decoded=True)
    assert preds.shape == (6, 2, 8, 8) and torch.equal(targs, y)
    assert torch.equal(decided, preds.argmax(1))
    assert (decided == y).float().mean() > 0.8


def _by_pixel(preds, targs):
    return F.cross_entropy(preds, targs)


# ---- sequences of unequal length ----


class Reader(nn.Module):
    """An LSTM that gives logits for each step; `lengths` says where a sequence ends."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, steps, lengths):
        out = self.head(self.lstm(steps)[0])  # (B, T, 2)
        return out[torch.arange(len(out)), lengths - 1]


def pad(rows):
    """Collate (steps, class) or (steps,) of unequal lengths."""
    steps = [row[0] for row in rows]
    lengths = torch.tensor([len(s) for s in steps])
    return (
        pad_sequence(steps, True),
        lengths,
        *map(torch.tensor, zip(*(r[1:] for r in rows), strict=True)),
    )


def test_sequences_of_unequal_length_are_padded_by_a_collate_function(tmp_path):
    steps = [torch.randn(3 + i % 5, 4) for i in range(12)]
    rows = [(s, int(s[0, 0] > 0)) for s in steps]
    torch.manual_seed(0)
    dl = DataLoader(rows, 4, shuffle=True, collate_fn=pad)
    learn = trained(Reader(), dl, F.cross_entropy, [TrainCB(n_inp=2)], epochs=5)
    each = [by_hand(learn, lambda m, s=s: m(s[None], torch.tensor([len(s)])))[0] for s in steps]
    inputs, preds, _ = learn.get_preds(with_inputs=True)
    torch.testing.assert_close(preds, torch.stack(each))
    assert isinstance(inputs[0], list) and len(inputs[0]) == 12  # padded to unequal lengths
    found = learn.infer([(s,) for s in steps[:5]], collate=pad)
    torch.testing.assert_close(torch.stack([p.output for p in found]), preds[:5])
    assert [p.label for p in found] == preds[:5].argmax(1).tolist()


# ---- losses inside the model ----


class OwnLosses(nn.Module):
    """Gives a dict of losses where it has targets, and logits where it has none."""

    def __init__(self):
        super().__init__()
        self.layer = linear(0, 3, 2)

    def forward(self, x, y=None):
        scores = self.layer(x)
        return (scores, F.cross_entropy(scores, y)) if y is not None else scores


def test_a_model_that_makes_its_loss_is_trained_predicted_and_exported(tmp_path):
    x = torch.randn(8, 3)
    y = (x[:, 0] > 0).long()
    dl = DataLoader([{"x": a, "y": b} for a, b in zip(x, y, strict=True)], 4)
    learn = trained(OwnLosses(), dl, None, [TrainCB(targets="y")])
    preds, targs = learn.get_preds()
    torch.testing.assert_close(preds, by_hand(learn, lambda model: model(x)))
    assert torch.equal(targs, y)
    learn.dls = DataLoaders(*learn.dls)
    learn.dls.pipeline = Pipeline(classes=["low", "high"])
    again = load_learner(learn.export(tmp_path / "m", pt2=True), "cpu", trust=True)
    labels = [p.label for p in again.infer([{"x": row} for row in x])]
    assert labels == [["low", "high"][i] for i in preds.argmax(1)]


# ---- transformers ----

WORDS = "good fine great nice bad awful poor sad the a film was plot".split()


def sentences(n):
    """Texts of 3 to 6 words with their mood, made with `datasets`."""
    from datasets import ClassLabel, Dataset, Features, Value

    g = torch.Generator().manual_seed(0)
    texts, labels = [], []
    for _ in range(n):
        mood = int(torch.randint(2, (), generator=g))
        fill = [WORDS[8 + int(i)] for i in torch.randint(5, (3,), generator=g)]
        word = WORDS[4 * mood + int(torch.randint(4, (), generator=g))]
        texts.append(" ".join([*fill[: int(torch.randint(1, 4, (), generator=g))], word]))
        labels.append(mood)
    features = Features({"text": Value("string"), "labels": ClassLabel(names=["good", "bad"])})
    return Dataset.from_dict({"text": texts, "labels": labels}, features)


def tokens(row):
    """Number the words; 0 is padding."""
    return {"input_ids": torch.tensor([1 + WORDS.index(word) for word in row["text"].split()])}


def collate(rows):
    """Pad the texts of a batch, and mark what is padding."""
    ids = pad_sequence([row["input_ids"] for row in rows], True)
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    labels = (
        {"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {}
    )
    return batch | labels


@pytest.fixture(scope="module")
def bert():
    """A tiny BERT, initialised at random and trained on made-up sentences; and these."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=len(WORDS) + 1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    ds = sentences(96)
    rows = [tokens(row) | {"labels": row["labels"]} for row in ds]
    dls = DataLoaders(
        DataLoader(rows, 16, shuffle=True, collate_fn=collate),
        DataLoader(rows, 32, collate_fn=collate),
    )
    dls.pipeline = Pipeline(classes=ds.features["labels"].names)
    cbs = [TrainCB(targets="labels"), MetricsCB(accuracy)]
    learn = Learner(model, dls, None, 5e-3, cbs, optim.AdamW)
    learn.fit(8)
    return learn, rows


def test_a_model_of_transformers_learns_with_its_own_loss(bert):
    learn, rows = bert
    assert learn.history[-1]["accuracy"] > 0.9
    preds, targs = learn.get_preds()
    expected = by_hand(learn, lambda model: model(**collate(rows[:32])).logits)
    torch.testing.assert_close(preds[:32], expected)
    assert targs.tolist() == [row["labels"] for row in rows]
    loss = F.cross_entropy(preds, targs).item()
    assert learn.validate().loss == pytest.approx(loss, rel=1e-5)


def test_a_trained_model_of_several_inputs_is_opened_by_from_pretrained(bert, tmp_path):
    learn, rows = bert
    learn.model.save_pretrained(tmp_path)
    again = type(learn.model).from_pretrained(tmp_path)
    batch = collate(rows[:32])
    assert {"input_ids", "attention_mask", "labels"} == batch.keys()
    ours, theirs = (by_hand(learn, lambda _, m=m: m.eval()(**batch)) for m in (learn.model, again))
    assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.loss, theirs.loss)


def test_a_model_of_transformers_names_classes_and_is_exported_as_a_graph(bert, tmp_path):
    learn, rows = bert
    items = [tokens({"text": text}) for text in ("the film was great", "a awful plot")]
    ours = learn.infer(items, collate=collate)
    assert [p.label for p in ours] == ["good", "bad"]
    again = load_learner(learn.export(tmp_path / "m", pt2=True), "cpu", trust=True)
    width = collate(rows[:32])["input_ids"].shape[1]  # the graph has the length of its example
    padded = {key: F.pad(x, (0, width - x.shape[1])) for key, x in collate(items).items()}
    theirs = again.get_preds([padded], with_targs=False)
    torch.testing.assert_close(theirs, torch.stack([p.output for p in ours]), rtol=1e-4, atol=1e-5)
