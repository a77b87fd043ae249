"""The state of modules: names, translated and compared states, all that training may change."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from minilearn import Learner, load_model
from minilearn.base import state_dict
from minilearn.base.state_dict import full_state, keep, load_full, load_state


class Renamed(nn.Module):
    """Translates the name that a layer had before."""

    def __init__(self):
        super().__init__()
        self.new = nn.Linear(3, 1)
        self.register_load_state_dict_pre_hook(self.translate)

    @staticmethod
    def translate(module, state, prefix, *args):
        for key in [k for k in state if k.startswith(f"{prefix}old.")]:
            state[key.replace("old.", "new.")] = state.pop(key)


class Resized(nn.Module):
    """Takes a buffer of any size from a state, as observers of quantisation do."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("seen", torch.zeros(n))

    def _load_from_state_dict(self, state, prefix, *args):
        self.seen = torch.empty_like(state[f"{prefix}seen"])
        super()._load_from_state_dict(state, prefix, *args)


def check_hooks(load):
    """F07: what a module's load hooks translate loads as with torch's own load_state_dict."""
    old = {"old.weight": torch.ones(1, 3), "old.bias": torch.ones(1)}
    model = Renamed()
    load(model, old)
    assert model.new.weight.sum() == 3
    inside = nn.Sequential(Renamed(), nn.Linear(1, 1))
    load(inside, {f"0.{n}": t for n, t in old.items()} | inside[1].state_dict(prefix="1."))
    assert inside[0].new.bias == 1
    other = Resized(0)
    load(other, {"seen": torch.arange(4.0)})
    assert other.seen.tolist() == [0, 1, 2, 3]
    normed = nn.utils.weight_norm(nn.Linear(3, 4)).state_dict()
    load(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), normed)


@pytest.mark.case("F07")
@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_states_that_load_hooks_translate_are_loaded():
    check_hooks(load_state)
    check_hooks(lambda model, state: load_state(nn.DataParallel(model), state))


@pytest.mark.case("F07")
def test_the_check_notices_a_comparison_before_the_hooks():
    def load(model, state):
        assert model.state_dict().keys() == state.keys()
        load_state(model, state)

    with pytest.raises(AssertionError):
        check_hooks(load)


def test_a_state_that_does_not_fit_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = [p.clone() for p in model.parameters()]
    bad = {"0.weight": torch.ones(2, 3), "1.weight": torch.ones(5, 2)}
    with pytest.raises(ValueError, match=r"1\.weight"):
        load_state(model, bad)
    assert all(map(torch.equal, before, model.parameters()))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.module, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.module(x))


def check_child_called_module(save, folder):
    """F08: a child of the model's own that is called `module` keeps its name."""
    for model in (Own(), nn.ModuleDict({"module": nn.Linear(1, 1)}), nn.DataParallel(Own())):
        save(model, folder / "w.safetensors")
        names = state_dict.unwrapped(model).state_dict().keys()
        assert load_file(folder / "w.safetensors").keys() == names
        load_model(folder / "w.safetensors", model)


@pytest.mark.case("F08")
def test_a_child_that_is_called_module_keeps_its_name(tmp_path):
    check_child_called_module(lambda model, path: Learner(model).save(path), tmp_path)


@pytest.mark.case("F08")
def test_the_check_notices_names_that_are_cut(tmp_path):
    from safetensors.torch import save_file

    def save(model, path):
        save_file({n.removeprefix("module."): t for n, t in model.state_dict().items()}, path)

    with pytest.raises(AssertionError):
        check_child_called_module(save, tmp_path)


class Everything(nn.Module):
    """Buffers of every kind."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("first", None)
        self.register_buffer("hidden", None, persistent=False)
        self.register_buffer("grown", torch.zeros(0))
        self.register_buffer("resized", torch.zeros(1))

    @torch.no_grad()
    def train_a_little(self):
        self.layer.weight += 1
        self.layer.bias.requires_grad_(not self.layer.bias.requires_grad)
        self.mean += 1
        self.first = torch.ones(2) if self.first is None else None
        self.hidden = torch.ones(3) if self.hidden is None else None
        self.grown = torch.cat([self.grown, torch.ones(2)])
        self.resized.resize_(len(self.resized) + 1).fill_(3)


def described(m):
    buffers = {n: None if b is None else b.tolist() for n, b in m._buffers.items()}
    return buffers, m.layer.weight.tolist(), [p.requires_grad for p in m.parameters()]


def check_restored(get, put):
    """F24: all that training changes in a module comes back, forwards and backwards in time."""
    for before, after in ((0, 1), (1, 2), (1, 0), (2, 1)):
        torch.manual_seed(0)
        model = Everything()
        for _ in range(before):
            model.train_a_little()
        saved, expected = get(model), described(model)
        torch.manual_seed(0)
        other = model if after > before else Everything()
        for _ in range(after if other is not model else after - before):
            other.train_a_little()
        put(other, saved)
        assert described(other) == expected


@pytest.mark.case("F24")
def test_buffers_of_every_kind_and_flags_come_back():
    import copy

    check_restored(
        lambda m: copy.deepcopy(full_state(m)), lambda m, s: load_full(m, s, "the state")
    )


@pytest.mark.case("F24")
def test_the_check_notices_what_a_state_dict_leaves_out():
    import copy

    with pytest.raises((AssertionError, RuntimeError)):
        check_restored(lambda m: copy.deepcopy(m.state_dict()), lambda m, s: m.load_state_dict(s))


@pytest.mark.case("F06")
def test_what_is_kept_comes_back_in_the_same_tensors():
    model = Everything()
    before, tensors = described(model), [model.layer.weight, model.grown, model.resized]
    undo = keep(model)
    model.train_a_little()
    undo()
    assert described(model) == before
    now = [model.layer.weight, model.grown, model.resized]
    assert all(a is b for a, b in zip(now, tensors, strict=True))
