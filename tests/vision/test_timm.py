"""timm's models, optimizers and schedules, where timm and torchvision are installed."""

from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import minilearn
from minilearn import (
    BatchSchedCB,
    Learner,
    TrainCB,
    cli,
    create_model,
    list_models,
    schedule,
)

timm = pytest.importorskip("timm", exc_type=ImportError)
SMALL = "timm/resnet10t"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A small sample, an empty folder, no network."""
    from datasets import DatasetDict

    whole = minilearn.fashion_mnist()
    few = DatasetDict({name: whole[name].shuffle(seed=1).select(range(64)) for name in whole})
    monkeypatch.setattr(minilearn, "fashion_mnist", lambda full=False: few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return few


def test_a_timm_model_trains_two_epochs_through_the_command_line_and_predicts(here, capsys):
    words = ["--model", SMALL, "--epochs", "2", "--bs", "16", "--opt", "lamb", "--device", "cpu"]
    words += ["--sched", "timm/cosine", "--sched_args.warmup_t", "2"]
    assert cli.main(["train", *words, "--out", "a"]) == 0
    assert len(Path("a/history.csv").read_text().splitlines()) == 3
    here["test"][0]["image"].save("x.png")
    assert cli.main(["predict", "a", "x.png", "--device", "cpu"]) == 0
    learn = minilearn.load_learner("a", "cpu")
    cfg = timm.get_pretrained_cfg("resnet10t")
    assert learn.dls.pipeline.mean == pytest.approx([sum(cfg.mean) / 3])
    assert learn.model.num_classes == 10
    assert cli.main(["train", "-c", "a/config.yaml", "--out", "b"]) == 0
    one, two = (load_file(Path(run, "model.safetensors")) for run in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_changes_of_torchvision_are_made_to_training_images(capsys):
    words = ["--aug.crop", "0.5", "--aug.jitter", "0.2", "--aug.auto", "trivial", "--size", "24"]
    assert cli.main(["train", *words, "--bs", "16", "--epochs", "1", "--out", "a"]) == 0
    assert yaml.safe_load(Path("a/config.yaml").read_text())["aug"]["crop"] == 0.5
    plain = ["--size", "24", "--bs", "16", "--epochs", "1", "--out", "b"]
    assert cli.main(["train", *plain]) == 0
    assert Path("a/history.csv").read_text() != Path("b/history.csv").read_text()


def test_head_and_channels_are_those_that_are_asked_for():
    model = create_model(SMALL, num_classes=7, in_chans=1)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)


def test_names_are_listed_by_pattern_and_near_ones_suggested():
    assert {"resnet", "timm/resnet18"} <= set(list_models("*res*"))
    assert set(list_models("resnet18*")) >= {"timm/resnet18"}
    with pytest.raises(ValueError, match="did you mean 'resnet18'"):
        create_model("timm/resnet81")
    with pytest.raises(ValueError, match="did you mean 'timm/tanh'"):
        schedule("timm/tan")


def test_weights_that_cannot_be_had_are_a_clear_word():
    with pytest.raises(ValueError, match="pretrained weights of timm/resnet10t cannot be had"):
        create_model(SMALL, pretrained=True)


def test_a_card_may_not_send_timm_elsewhere():
    from minilearn.nn.registry import remake_model

    for name, arguments in [(SMALL, {"checkpoint_path": "x.pth"}), ("timm/hf-hub:a/b", {})]:
        with pytest.raises(ValueError, match="which is no part of it"):
            remake_model(name, arguments)


def rates(learn, n):
    lrs = []
    learn.on("before_step", lambda learn: lrs.append(learn.opt.param_groups[0]["lr"]))
    learn.fit(n, lr=0.1)
    return lrs


def test_create_optimizer_v2_and_schedules_are_factories():
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler, TanhLRScheduler

    def opt_func(params, lr):
        return create_optimizer_v2(params, opt="lamb", lr=lr)

    batches = [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(5)]
    for sched in (CosineLRScheduler, TanhLRScheduler):
        net = torch.nn.Linear(2, 1)
        cbs = [TrainCB(), BatchSchedCB(partial(sched, warmup_t=2, warmup_lr_init=1e-3))]
        learn = Learner(net, (batches, None), cbs=cbs, opt_func=opt_func)
        found = rates(learn, 2)
        alone = torch.optim.SGD([torch.zeros(1)], 0.1)
        told = sched(alone, t_initial=10, warmup_t=2, warmup_lr_init=1e-3, t_in_epochs=False)
        expected = []
        for t in range(10):
            told.step_update(t)
            expected.append(alone.param_groups[0]["lr"])
        assert found == pytest.approx(expected) and type(learn.opt).__name__ == "Lamb"
