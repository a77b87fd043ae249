"""The ported training scripts of examples/: each is run at a small size, and learns.

Where the loop can be written down in a few lines, the script equals it to the bit.
"""

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import optim
from toys import assert_same_weights, train_by_hand

from minilearn import CheckpointCB, DataLoaders, fashion_mnist, load_model, set_seed

FOLDER = Path(__file__).parents[1] / "examples"
PORTS = (
    *("dcgan", "gcn", "imagenet", "mnist", "reinforce", "siamese"),
    *("super_resolution", "time_sequence", "vae", "word_language_model"),
)


@pytest.fixture
def script(monkeypatch):
    """Import scripts as Python does when it runs one: their own folder is on the path."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("MINILEARN_DEVICE", "cpu")
    return importlib.import_module


@pytest.fixture(scope="module")
def sample():
    return fashion_mnist()


def few(sample, n):
    """The first `n` images of each split, for scripts and loops by hand alike."""
    return {split: ds.select(range(n)) for split, ds in sample.items()}


def ratio(learn, column):
    """The last value of a column over its first."""
    return learn.history[-1][column] / learn.history[0][column]


@pytest.mark.parametrize("name", PORTS)
def test_a_port_is_short(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 60


def test_mnist_learns_and_equals_the_loop_by_hand(script, sample, monkeypatch, tmp_path):
    mnist = script("mnist")
    clothes = few(sample, 192)
    monkeypatch.setattr(mnist, "fashion_mnist", lambda: clothes)
    learn = mnist.main(epochs=3, save=tmp_path / "mnist.safetensors")
    assert learn.history[-1]["accuracy"] > 0.3  # one in ten by chance

    set_seed(1)
    dls, theirs = DataLoaders.from_dd(clothes, 64), mnist.network()
    opt = optim.Adadelta(theirs.parameters(), 1.0)
    for _ in range(3):
        train_by_hand(theirs, (dls.train, dls.valid), opt, 1, F.cross_entropy)
        opt.param_groups[0]["lr"] *= 0.7
    assert_same_weights(learn.model, theirs)
    assert_same_weights(load_model(tmp_path / "mnist.safetensors", mnist.network()), theirs)


def test_imagenet_goes_on_where_it_was_stopped_to_the_bit(script, sample, monkeypatch, tmp_path):
    imagenet = script("imagenet")
    clothes = few(sample, 192)
    monkeypatch.setattr(imagenet, "fashion_mnist", lambda: clothes)
    imagenet.main(tmp_path / "two", epochs=1, batches=3)
    resumed = imagenet.main(tmp_path / "two", epochs=3, batches=3)
    unbroken = imagenet.main(tmp_path / "one", epochs=3, batches=3)
    assert_same_weights(resumed.model, unbroken.model)
    assert resumed.steps_done == 9
    assert [row["top1"] for row in resumed.history] == [row["top1"] for row in unbroken.history]
    assert resumed.history[-1]["train_top5"] > 0.7  # half by chance
    assert ratio(resumed, "train_loss") < 0.9
    best = max(resumed.history, key=lambda row: row["top1"])
    assert resumed.find(CheckpointCB).best.name.startswith(f"epoch{best['epoch']:03}-")


def test_the_vae_rebuilds_better_and_its_parts_add_up(script):
    learn = script("vae").main(epochs=2, batches=30)
    assert ratio(learn, "valid_loss") < 0.95
    for row in learn.history:
        assert row["rebuilt"] + row["divergence"] == pytest.approx(row["valid_loss"])
    pictures = learn.model.decode(torch.randn(4, 16)).sigmoid()
    assert pictures.shape == (4, 1, 28, 28)


def test_the_siamese_network_distinguishes_pairs(script, sample, monkeypatch):
    siamese = script("siamese")
    monkeypatch.setattr(siamese, "fashion_mnist", lambda: few(sample, 800))
    learn = siamese.main(epochs=3)
    assert learn.history[-1]["accuracy"] > 0.7  # half by chance
    pairs = learn.dls.train.dataset
    same = [bool(pairs[i][2]) for i in range(200)]
    assert 0.35 < sum(same) / 200 < 0.65


def test_the_language_model_equals_truncated_backpropagation_by_hand(script):
    module = script("word_language_model")
    size = {"n": 3000, "n_kinds": 200, "n_hidden": 32}
    learn = module.main(epochs=2, **size)
    assert ratio(learn, "valid_loss") < 0.95
    for row in learn.history:
        assert row["Perplexity"] == pytest.approx(torch.tensor(row["valid_loss"]).exp().item())
    assert learn.opt.param_groups[0]["lr"] == 5.0  # it got better each time

    set_seed(1111)
    train = module.corpus(3000, 200)[:2700]
    theirs = module.WordModel(200, 32)
    opt = optim.SGD(theirs.parameters(), 5.0)
    for _ in range(2):
        theirs.state = None
        for words, following in module.batches(train, 20, 35):
            F.cross_entropy(theirs(words).mT, following).backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.25)
            opt.step()
            opt.zero_grad()
    assert_same_weights(learn.model, theirs)


def test_a_language_model_that_gains_nothing_trains_at_a_quarter_of_the_rate(script, monkeypatch):
    module = script("word_language_model")
    monkeypatch.setattr(module.WordModel, "forward", lambda self, words: self.out.weight[words])
    monkeypatch.setattr(module, "loss_func", lambda preds, words: preds.sum() * 0 + 4)
    learn = module.main(epochs=3, n=3000, n_kinds=200, n_hidden=200)
    assert learn.opt.param_groups[0]["lr"] == 5.0 / 16


def test_lbfgs_foresees_the_wave_as_its_loop_by_hand(script):
    module = script("time_sequence")
    learn = module.main(updates=3, n=8, length=30, n_hidden=8)
    assert ratio(learn, "valid_loss") < 0.5

    set_seed(0)
    data = module.waves(8, 30)[3:]
    theirs = module.Waves(8).double()
    opt = optim.LBFGS(theirs.parameters(), 0.8)

    def closure():
        opt.zero_grad()
        loss = F.mse_loss(theirs(data[:, :-1]), data[:, 1:])
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    assert_same_weights(learn.model, theirs)
    assert theirs(data, n_more=5).shape == (5, 35)


def test_the_policy_balances_longer_as_it_does_in_a_loop_by_hand(script):
    module = script("reinforce")
    learn = module.main(epochs=3, updates=6)
    assert ratio(learn, "train_length") > 1.5

    set_seed(543)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    opt = optim.Adam(theirs.parameters(), 1e-2)
    for _ in range(3 * 6):
        states, pushes, worth = module.play(theirs)
        module.loss_func(theirs(states), pushes, worth).backward()
        opt.step()
        opt.zero_grad()
    assert_same_weights(learn.model, theirs)


def test_what_a_push_is_worth_is_what_followed_it_discounted(script):
    states, pushes, worth = script("reinforce").play(torch.nn.Linear(4, 2), n=3)
    up = pushes >= 0
    value = torch.zeros(3)
    values = []
    for t in reversed(range(pushes.shape[1])):
        value = up[:, t] + 0.99 * value
        values.append(value)
    expected = torch.stack(values[::-1], 1)
    expected = (expected - expected[up].mean()) / expected[up].std()
    torch.testing.assert_close(worth, expected)
    assert states.shape == (*pushes.shape, 4)


def test_the_dcgan_draws_images_that_are_more_like_clothes(script):
    module, gan = script("dcgan"), script("gan")
    torch.manual_seed(0)
    noise = torch.randn(128, gan.NOISE)

    def far(learn):
        """How far the mean of what is drawn is from that of the images, a pixel."""
        drawn = learn.model.generator.train()(noise).detach()
        pictures = next(iter(learn.dls.valid))[0]
        return (drawn.mean(0) - pictures.mean(0)).abs().mean()

    assert far(module.main(epochs=1, batches=30, n=8)) < 0.6 * far(module.main(1, 1, 8))


def test_super_resolution_learns_towards_a_sharper_image(script, sample, monkeypatch):
    module = script("super_resolution")
    monkeypatch.setattr(module, "fashion_mnist", lambda: few(sample, 300))
    learn = module.main(epochs=4)
    assert ratio(learn, "valid_loss") < 0.5
    small, large = learn.dls.valid.dataset[:4]
    assert learn.model(small).shape == module.enlarged(small).shape == large.shape
    assert module.decibels(0.01) == pytest.approx(20)


def test_the_graph_network_finds_communities_and_counts_only_the_known(script):
    module = script("gcn")
    learn = module.main(epochs=40)
    assert learn.history[-1]["accuracy"] > 0.9  # a quarter by chance; 40 of 300 are known
    traits, graph, hidden = learn.dls[1][0]
    with torch.no_grad():
        guesses = learn.model.eval()(traits, graph).argmax(1)
    asked = hidden != module.UNKNOWN
    assert asked.sum() == 260
    right = (guesses == hidden)[asked].float().mean().item()
    assert right == pytest.approx(learn.history[-1]["accuracy"])
    without_friends = learn.model.eval()(traits, torch.eye(300)).argmax(1)
    assert right > (without_friends == hidden)[asked].float().mean() + 0.1
