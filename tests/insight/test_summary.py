"""summary counts what torch counts and changes nothing; history.plot shows the rows."""

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minilearn.callbacks.training import TrainCB
from minilearn.core.history import History
from minilearn.insight.summary import summarize
from minilearn.learner import Learner
from minilearn.metrics.callback import MetricsCB
from tests.insight.test_lr_finder import adam, check_no_trace
from tests.toys import toy_learner


def pictures(n=2):
    return [(torch.randn(4, 1, 8, 8), torch.zeros(4, 10)) for _ in range(n)]


def cnn():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU()), nn.Flatten(), nn.Linear(216, 10)
    )


def test_shapes_parameters_and_operations_equal_those_on_paper(capsys):
    model = cnn()
    model[2].bias.requires_grad_(False)
    learn = Learner(model, (pictures(), None), F.mse_loss, cbs=TrainCB(), lr=None)
    found = summarize(learn)
    assert [row.layer for row in found.rows] == ["0.0 Conv2d", "0.1 ReLU", "1 Flatten", "2 Linear"]
    conv, _, _, linear = found.rows
    assert (conv.input, conv.output) == ("[4, 1, 8, 8]", "[4, 6, 6, 6]")
    assert (conv.params, linear.params, linear.trainable) == (60, 2170, 2160)
    # a multiply-add for each output and weight, two operations each
    assert conv.flops == 2 * (4 * 6 * 36) * 9 and linear.flops == 2 * 4 * 216 * 10
    assert conv.memory == 4 * 6 * 36 * 4
    total = found.total
    assert (total.params, total.trainable) == (2230, 2220)
    assert total.flops == conv.flops + linear.flops
    assert learn.summary() is None
    assert capsys.readouterr().out == f"{found}\n"
    assert ">0.0 Conv2d</td>" in found._repr_html_()


class Tied(nn.Module):
    """A dict in, a dict out; an embedding that is used again, a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.emb, self.rnn = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True)
        self.out, self.pos = nn.Linear(4, 9, bias=False), nn.Parameter(torch.zeros(5, 4))
        self.out.weight, self.unused = self.emb.weight, nn.Linear(2, 2)

    def forward(self, ids):
        return {"logits": self.out(self.rnn(self.emb(ids) + self.pos)[0]), "none": None}


def test_any_structure_with_shared_parameters_once():
    batch = {"ids": torch.zeros(3, 5).long(), "y": torch.zeros(3)}
    learn = Learner(
        Tied(), ([batch], None), lambda p, y: p["logits"].mean(), cbs=TrainCB(targets="y")
    )
    rows = {row.layer: row for row in summarize(learn).rows}
    assert rows["emb Embedding"].params == 36 and rows["out Linear"].params == 0
    assert rows["Tied"].params == 20 and "logits" in rows["Tied"].output
    assert "tuple" in rows["rnn LSTM"].output and "unused Linear" not in rows
    assert summarize(learn).total.params == sum(p.numel() for p in learn.model.parameters())


def test_a_compiled_model_is_shown_as_it_was_before():
    model = torch.compile(cnn(), backend="eager")
    learn = Learner(model, (pictures(), None), F.mse_loss, cbs=TrainCB())
    assert len(summarize(learn).rows) == 4
    assert learn.model is model


def test_summary_changes_nothing(capsys):
    check_no_trace(adam(), lambda learn: learn.summary())
    with pytest.raises(AssertionError):
        check_no_trace(adam(), lambda learn: learn.fit(1, cbs=[], lr=1.0))


def fitted(**kwargs):
    learn = toy_learner([MetricsCB(mae=lambda p, y: (p - y).abs().mean())])
    learn.fit(**kwargs)
    return learn.history


def test_history_plot_draws_training_and_validation_of_each_value():
    history = fitted(n_epochs=3)
    loss, mae = history.plot().flat
    assert (loss.get_title(), mae.get_title()) == ("loss", "mae")
    train, valid = loss.lines
    assert list(train.get_ydata()) == history["train_loss"]
    assert list(valid.get_ydata()) == history["valid_loss"]
    assert list(valid.get_xdata()) == [0, 1, 2]
    (only,) = history.plot("mae").flat
    assert [line.get_label() for line in only.lines] == ["training", "validation"]
    plt.close("all")


def test_history_plot_counts_updates_where_an_epoch_has_several_rows():
    history = fitted(n_epochs=2, valid_every=(1, "step"))
    (ax,) = history.plot("loss").flat
    assert list(ax.lines[0].get_xdata()) == [1, 2, 3, 4] and ax.get_xlabel() == "updates"
    plt.close("all")


def test_history_plot_says_what_it_cannot_show():
    with pytest.raises(ValueError, match="no rows yet"):
        History().plot()
    with pytest.raises(KeyError, match="no column 'acc'; there are epoch"):
        fitted(n_epochs=1).plot("acc")
