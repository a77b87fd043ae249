"""Weights in files go from any form of a model into any other, or say why not."""

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from toys import toy_learner

from minilearn import EMACB, Learner, load_model
from minilearn.base.state_dict import clean_state, load_state
from minilearn.checkpoint.inspect import contents
from minilearn.checkpoint.weights import read_weights

Wrapped = nn.DataParallel  # does to names what DistributedDataParallel does


FORMS = {
    "plain": lambda m: m,
    "compiled": torch.compile,
    "wrapped": Wrapped,
    "compiled, wrapped": lambda m: Wrapped(torch.compile(m)),
    "wrapped, compiled": lambda m: torch.compile(Wrapped(m)),
}


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def check_forms(load, tmp_path):
    """C007: files of all forms hold the same names, and load into all forms."""
    for form, wrap in FORMS.items():
        path = tmp_path / f"{form}.safetensors"
        Learner(wrap(net(1))).save(path)
        assert set(read_weights(path)) == set(net().state_dict())
        for into in FORMS.values():
            inner = net(2)
            load(path, into(inner))
            for a, b in zip(inner.state_dict().values(), net(1).state_dict().values(), strict=True):
                assert torch.equal(a, b)


@pytest.mark.case("C007")
def test_weights_go_from_any_form_into_any_form(tmp_path):
    check_forms(load_model, tmp_path)


@pytest.mark.case("C007")
def test_the_check_notices_a_loader_that_strips_one_prefix(tmp_path):
    from safetensors.torch import load_file

    def load(path, model):
        state = {name.removeprefix("module."): t for name, t in load_file(path).items()}
        model.load_state_dict(state, strict=False)

    with pytest.raises(AssertionError):
        check_forms(load, tmp_path)


@pytest.mark.case("C007")
@pytest.mark.parametrize("prefix", ["module._orig_mod.", "_orig_mod.module.", "module.module."])
def test_old_files_with_any_nesting_load(prefix, tmp_path):
    torch.save({prefix + name: t for name, t in net(1).state_dict().items()}, tmp_path / "old.pt")
    model = load_model(tmp_path / "old.pt", net(2))
    assert torch.equal(model[0].weight, net(1)[0].weight)


def test_names_are_cleaned_of_wrappers_alone():
    def cleaned(name, model):
        return next(iter(clean_state({name: 0}, model)))

    plain, part = nn.Sequential(nn.Linear(1, 1)), nn.ModuleDict({"module": nn.Linear(1, 1)})
    assert cleaned("module._orig_mod.module.0.weight", plain) == "0.weight"
    assert cleaned("encoder._orig_mod.module.weight", None) == "encoder.module.weight"
    assert cleaned("module.weight", part) == "module.weight"
    assert cleaned("module.module.weight", nn.DataParallel(part)) == "module.weight"
    assert cleaned("module", None) == "module"


def test_names_stay_where_cleaning_would_join_two(tmp_path):
    model = nn.Linear(1, 1)
    model.module = nn.Linear(1, 1)
    Learner(model).save(tmp_path / "m.safetensors")
    assert "module.weight" in read_weights(tmp_path / "m.safetensors")
    load_model(tmp_path / "m.safetensors", model)


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def test_tied_weights_load_back_tied(tmp_path):
    learn = Learner(tied())
    learn.save(tmp_path / "m.safetensors")
    learn.save_checkpoint(tmp_path / "m.ckpt")
    for file in ("m.safetensors", "m.ckpt"):
        model = load_model(tmp_path / file, tied())
        assert model[1].weight is model[0].weight
        assert torch.equal(model[0].weight, learn.model[0].weight)
        apart = load_model(tmp_path / file, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        assert torch.equal(apart[1].weight, learn.model[0].weight)


def test_averages_or_the_weights_that_are_trained(tmp_path):
    ema = EMACB(0.5)
    learn = toy_learner([ema], model=tied(), dls=([(torch.randn(2, 3), torch.randn(2, 3))],))
    learn.fit(3)
    learn.save(tmp_path / "m.safetensors")
    learn.save(tmp_path / "raw.safetensors", averaged=False)
    learn.save_checkpoint(tmp_path / "m.ckpt")
    mean, raw = ema.averaged_state_dict()["1.weight"], learn.model[1].weight
    assert not torch.equal(mean, raw)
    for file, averaged, expected in (
        ("m.safetensors", True, mean),
        ("raw.safetensors", True, raw),
        ("m.ckpt", True, mean),
        ("m.ckpt", False, raw),
    ):
        model = load_model(tmp_path / file, tied(), averaged=averaged)
        assert torch.equal(model[1].weight, expected), file


def test_another_model_is_a_table(tmp_path):
    Learner(net()).save(tmp_path / "m.safetensors")
    other = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(4))
    with pytest.raises(ValueError) as e:
        load_model(tmp_path / "m.safetensors", other)
    lines = str(e.value).splitlines()
    assert lines[1].split() == ["tensor", "model", "file"]
    assert "0.weight  [5, 3]  [4, 3]" in lines and "2.bias    -       [1]" in lines


def test_what_fits_is_not_loaded_in_part_unless_that_is_asked_for():
    ours, theirs = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)), nn.Sequential(nn.Linear(2, 1))
    before = ours[0].weight.clone()
    with pytest.raises(ValueError, match="strict=False loads what fits"):
        load_state(ours, theirs.state_dict())
    assert torch.equal(ours[0].weight, before)


@pytest.mark.parametrize(("n", "end"), [(20, "19.weight  [1, 1]  [2, 1]"), (23, "... and 3 more")])
def test_a_long_table_says_how_much_more_there_is(n, end):
    ours, theirs = (nn.Sequential(*(nn.Linear(1, k, bias=False) for _ in range(n))) for k in (1, 2))
    with pytest.raises(
        ValueError, match="strict=False loads what fits, and nothing does"
    ) as caught:
        load_state(ours, theirs.state_dict())
    head, *lines = str(caught.value).splitlines()
    assert lines[-1].strip() == end and len(lines) == 1 + min(n, 20) + (n > 20)


def test_strict_false_loads_what_fits_and_says_what_does_not(tmp_path):
    Learner(net(1)).save(tmp_path / "m.safetensors")
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 7))
    with pytest.warns(UserWarning, match=r"2\.weight  \[7, 4\]  \[1, 4\]"):
        load_model(tmp_path / "m.safetensors", other, strict=False)
    assert torch.equal(other[0].weight, net(1)[0].weight)
    with pytest.raises(ValueError, match="and nothing does"):
        load_model(tmp_path / "m.safetensors", nn.Linear(9, 9), strict=False)


def test_the_weights_stay_where_they_are_and_loading_draws_no_random_numbers(tmp_path):
    learn = Learner(net(1))
    learn.save(tmp_path / "m.safetensors")
    model = net(2)
    before, state = model[0].weight, torch.get_rng_state()
    load_model(tmp_path / "m.safetensors", model)
    learn.load(tmp_path / "m.safetensors")
    assert model[0].weight is before and torch.equal(torch.get_rng_state(), state)


@pytest.mark.case("C127")
def test_an_old_pickle_runs_only_where_it_is_trusted(tmp_path):
    marker = tmp_path / "ran"
    code = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"

    class Evil:
        def __reduce__(self):
            return exec, (code,)

    torch.save({"weight": torch.ones(1, 3), "bias": torch.ones(1), "x": Evil()}, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="trust=True"):
        load_model(tmp_path / "m.pt", nn.Linear(3, 1))
    assert not marker.exists()
    with pytest.warns(UserWarning, match="all the code"), pytest.raises(ValueError):
        load_model(tmp_path / "m.pt", nn.Linear(3, 1), trust=True)  # "x" is no tensor of it
    assert marker.exists()


def test_a_whole_pickled_model_needs_trust_too(tmp_path):
    torch.save(net(1), tmp_path / "m.pt")
    with pytest.raises(ValueError, match="trust=True"):
        load_model(tmp_path / "m.pt", net())
    with pytest.warns(UserWarning, match="all the code"):
        model = load_model(tmp_path / "m.pt", net(), trust=True)
    assert torch.equal(model[0].weight, net(1)[0].weight)


def test_what_others_call_the_weights_is_found(tmp_path):
    torch.save({"state_dict": net(1).state_dict(), "epoch": 3}, tmp_path / "m.pt")
    assert torch.equal(load_model(tmp_path / "m.pt", net())[0].weight, net(1)[0].weight)


@pytest.mark.parametrize("junk", [b"", b"junk", pickle.dumps([1, 2])])
@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.ckpt"])
def test_junk_is_an_error_that_names_the_file(name, junk, tmp_path):
    (tmp_path / name).write_bytes(junk)
    with pytest.raises(ValueError, match=name):
        load_model(tmp_path / name, net())


def test_a_failed_save_leaves_the_file_before(tmp_path):
    learn = Learner(net())
    learn.save(tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()
    learn.model.register_buffer("odd", torch.zeros(1).to_sparse())
    with pytest.raises(TypeError, match="'odd' of the model is no dense tensor"):
        learn.save(tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["m.safetensors"]
    with pytest.raises(ValueError, match="saved as .safetensors"):
        learn.save(tmp_path / "m.pt")


def test_inspect_shows_what_files_hold(tmp_path):
    learn = toy_learner([EMACB(0.5)])
    learn.fit(2)
    learn.save_checkpoint(tmp_path / "m.ckpt")
    learn.save(tmp_path / "m.safetensors")
    text = contents(tmp_path / "m.ckpt")
    for part in ("after epoch 1; 4 updates", "2 tensors, 4 elements", "SGD", "EMACB", "2 rows"):
        assert part in text
    assert "float32 [1, 3]" in contents(tmp_path / "m.safetensors")
    command = [sys.executable, "-m", "minilearn", "inspect"]
    out = subprocess.run([*command, tmp_path / "m.ckpt"], capture_output=True, text=True)
    assert (out.returncode, out.stdout.strip()) == (0, text)
    out = subprocess.run([*command, tmp_path / "no.ckpt"], capture_output=True, text=True)
    assert out.returncode == 2 and "no.ckpt" in out.stderr
