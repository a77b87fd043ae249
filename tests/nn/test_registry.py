"""Models and schedules by name."""

import sys

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from minilearn import create_model, list_models, resnet, sched_lrs, schedule
from minilearn.nn import timm_models
from minilearn.nn.registry import MODELS, did_you_mean, named_object, remake_model
from minilearn.optim.schedulers import TimmScheduler


def test_ours_go_by_their_registered_names():
    torch.manual_seed(0)
    one = create_model("resnet", n_in=3, n_out=5)
    torch.manual_seed(0)
    two = resnet(3, 5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert create_model("cnn", n_in=3, n_out=4)(
        torch.zeros(2, 3, 28, 28, device=one[0][0].weight.device)
    ).shape == (2, 4)


@pytest.mark.parametrize("name", ["resnt", "Resnet", "cn"])
def test_a_name_that_is_not_there_suggests_near_ones(name):
    with pytest.raises(ValueError, match=r"did you mean '(resnet|cnn)'"):
        create_model(name)


def test_any_callable_goes_by_module_and_name():
    layer = create_model("torch.nn:Linear", in_features=2, out_features=3)
    assert isinstance(layer, nn.Linear) and layer.weight.shape == (3, 2)
    assert named_object("minilearn.nn:models.resnet") is resnet


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("os:getcw", ValueError, "did you mean 'getcwd'"),
        ("nowhere.at:all", ImportError, "names no module"),
        ("minilearn.nowhere:x", ImportError, "names no module"),
    ],
)
def test_a_callable_that_is_not_there_is_named(spec, error, message):
    with pytest.raises(error, match=message):
        create_model(spec)


def test_a_module_that_misses_something_says_what(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lacking.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        named_object("lacking:f")


def test_names_are_listed_by_pattern(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # as without timm
    timm_models.names.cache_clear()
    assert list_models() == sorted(MODELS) and list_models("*res*") == ["resnet"]


def test_without_timm_its_names_say_what_is_missing(monkeypatch):
    for name in ("timm", "timm.scheduler"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (create_model, schedule):
        with pytest.raises(ImportError, match="need timm, which cannot be imported"):
            make("timm/cosine")


def test_a_file_can_name_registered_models_alone():
    assert isinstance(remake_model("resnet", {"n_in": 1}), nn.Sequential)
    with pytest.raises(ValueError, match="no model 'vgg' is registered here"):
        remake_model("vgg", {})
    for name in ("os:getcwd", "torch.nn:Linear"):
        with pytest.raises(ValueError, match=f"{name}.* trust=True"):
            remake_model(name, {})
    with pytest.raises(ValueError, match="os:getcwd is no class of a model"):
        remake_model("os:getcwd", {}, trust=True)


def test_near_names_are_found_whatever_their_case():
    assert did_you_mean("ADAMW", ["adamw", "sgd"]) == "; did you mean 'adamw'?"
    assert did_you_mean("zzz", ["adamw", "sgd"]) == ""


def test_schedules_go_by_name():
    cosine = sched_lrs(schedule("cosine", eta_min=0.1), 10)
    assert cosine == pytest.approx(
        sched_lrs(lambda opt: lr_scheduler.CosineAnnealingLR(opt, 10, 0.1), 10)
    )
    assert sched_lrs(schedule("none"), 3) == [1.0] * 3
    assert sched_lrs(schedule("linear"), 4) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert max(sched_lrs(schedule("one_cycle"), 100)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cosin", {}, "did you mean 'cosine'"),
        ("cosine", {"eta_mn": 1}, "did you mean 'eta_min'"),
        ("flat_cos", {"pct": 1}, "takes no 'pct'"),
    ],
)
def test_a_schedule_that_is_not_there_suggests_near_ones(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(name, **arguments)


class Halving:
    """A schedule as timm's are: it gets the time, and has no counter."""

    def __init__(self, optimizer, t_initial, t_in_epochs=True):
        self.optimizer, self.t_in_epochs, self.t_initial = optimizer, t_in_epochs, t_initial
        self.base = optimizer.param_groups[0]["lr"]

    def step(self, t, metric=None):
        assert self.t_in_epochs
        self.optimizer.param_groups[0]["lr"] = self.base * 0.5 ** (t / self.t_initial)

    def step_update(self, t, metric=None):
        assert not self.t_in_epochs
        self.optimizer.param_groups[0]["lr"] = self.base * 0.5 ** (t / self.t_initial)


@pytest.mark.parametrize("in_epochs", [True, False])
def test_a_schedule_that_gets_the_time_is_a_factory(in_epochs):
    lrs = sched_lrs(lambda opt, t_initial: Halving(opt, t_initial, in_epochs), 4)
    assert lrs == pytest.approx([0.5 ** (t / 4) for t in range(4)])


def test_such_a_schedule_goes_on_from_its_time():
    opt = torch.optim.SGD([torch.zeros(1)], 1.0)
    sched = TimmScheduler(Halving(opt, 1))
    sched.step()
    sched.step()
    again = TimmScheduler(Halving(torch.optim.SGD([torch.zeros(1)], 1.0), 1))
    again.load_state_dict(sched.state_dict())
    assert again.optimizer.param_groups[0]["lr"] == opt.param_groups[0]["lr"] == 0.25
