"""Optimizers by name, groups of parameters, rates by layer, freezing, and fine-tuning."""

import sys
import types
import warnings
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.utils.parametrizations import spectral_norm
from toys import At, assert_same_weights, batches, linear, toy_dls, toy_learner, train_by_hand

from minilearn import (
    BatchSchedCB,
    CheckpointCB,
    ClosureCB,
    DeviceCB,
    GradAccumCB,
    Learner,
    MixedPrecision,
    RecorderCB,
    TrainCB,
    lookahead,
    optimizer,
    param_groups,
    resnet,
)
from minilearn.optim import freeze as freeze_module
from minilearn.optim import optimizer as optimizer_module
from minilearn.optim.optimizer import OptFunc, layer_groups


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(3), nn.Linear(3, 3)

    def forward(self, x):
        return x + self.mix(self.norm(x))


class Encoder(nn.Module):
    """An embedding, three blocks in a stack, a head; a token of its own that must not decay."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 3))
        self.embed, self.blocks = nn.Linear(3, 3), nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(3, 1)

    def no_weight_decay(self):
        return {"token"}

    def forward(self, x):
        x = self.embed(x) + self.token
        for block in self.blocks:
            x = block(x)
        return self.head(x)


LAYERS = [{"token", "embed"}, {"blocks.0"}, {"blocks.1"}, {"blocks.2"}, {"head"}]


def named_layers(model, layers):
    names = {id(p): name for name, p in model.named_parameters()}
    return [{names[id(p)].rpartition(".")[0] or names[id(p)] for p in layer} for layer in layers]


# ---- by name ----

NAMES = [n for n in dir(optim) if isinstance(getattr(optim, n), type) and n != "Optimizer"]


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_of_torch_has_its_name(name):
    assert optimizer(name.lower()).func is optimizer(name).func is getattr(optim, name)


@pytest.mark.parametrize(
    "opt_func", ["adamw", "AdamW", optimizer("adamw"), optimizer(optim.AdamW), optim.AdamW]
)
def test_a_name_makes_the_same_optimizer_as_its_class(opt_func):
    ours, theirs, dls = linear(), linear(), toy_dls(5)
    learn = toy_learner([], dls, ours, opt_func=opt_func, lr=0.05)
    learn.fit(2)
    train_by_hand(theirs, dls, optim.AdamW(theirs.parameters(), 0.05), 2)
    assert_same_weights(ours, theirs)
    assert len(learn.opt.param_groups) == 1


def test_further_arguments_reach_the_optimizer():
    learn = toy_learner(opt_func=optimizer("sgd", momentum=0.9, nesterov=True))
    learn.fit(1)
    assert learn.opt.defaults["momentum"] == 0.9 and learn.opt.defaults["nesterov"]


def test_a_wrong_name_is_answered_with_near_ones():
    with pytest.raises(ValueError, match="no optimizer 'addamw'; did you mean 'adamw'"):
        toy_learner(opt_func="addamw").fit(1)
    with pytest.raises(ValueError, match="torch has adadelta, .*sgd"):
        optimizer("lion")


def test_names_of_timm_are_known_where_it_is_installed(monkeypatch):
    timm = types.ModuleType("timm.optim")
    timm.get_optimizer_class = lambda name: {"lion": optim.RMSprop}[name]
    timm.list_optimizers = lambda: ["lion", "lamb"]
    monkeypatch.setitem(sys.modules, "timm", types.ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.optim", timm)
    assert optimizer("lion").func is optim.RMSprop
    assert optimizer("sgd").func is optim.SGD
    with pytest.raises(ValueError, match="did you mean 'lion'"):
        optimizer("lions")


def test_the_learner_shows_which_optimizer_it_will_make():
    assert "opt:  AdamW" in repr(toy_learner(opt_func=optimizer("adamw", wd=0.1)))


def test_what_takes_the_model_is_given_the_model():
    def by_model(model, lr):
        return optim.SGD([{"params": [model.bias], "lr": 2 * lr}, {"params": [model.weight]}], lr)

    by_model.takes_model = True
    learn = toy_learner(opt_func=by_model)
    learn.fit(1)
    assert [g["lr"] for g in learn.opt.param_groups] == [0.2, 0.1]


# ---- groups ----


def check_groups(groups_of, model):
    """C099: each parameter once, and a decay that touches only what should decay."""
    groups = groups_of(model, 0.1)
    held = [p for group in groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = optim.AdamW(groups, 0.5)
    for p in held:
        assert (
            p.dim() > 1
            or [g for g in groups if any(p is q for q in g["params"])][0]["weight_decay"] == 0
        )
        p.grad = torch.zeros_like(p)
    opt.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"conv.weight", "linear.weight", "embed.weight"}


class Everything(nn.Module):
    """Conv, linear, batch and layer norm, an embedding, and tied weights; nothing is zero."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.ln = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LayerNorm((4, 4))
        self.linear, self.embed = nn.Linear(4, 4), nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.embed.weight
        for p in self.parameters():
            nn.init.uniform_(p, 0.5, 1.0)


@pytest.mark.case("C099")
def test_each_parameter_is_in_one_group_and_only_matrices_decay():
    check_groups(param_groups, Everything())
    check_groups(partial(param_groups, layer_decay=0.5, lr=0.1), Everything())
    check_groups(partial(param_groups, splitter=lambda m: [m.conv, m]), Everything())


@pytest.mark.case("C099")
def test_the_check_of_groups_notices_faulty_ones():
    def all_decay(model, wd):
        return [{"params": list(model.parameters()), "weight_decay": wd}]

    def norms_decay(model, wd):
        return param_groups(model, wd, no_decay="bias")

    def one_lost(model, wd):
        groups = param_groups(model, wd)
        groups[0]["params"].pop()
        return groups

    for faulty in (all_decay, norms_decay, one_lost):
        with pytest.raises(AssertionError):
            check_groups(faulty, Everything())


def spared(model, no_decay, wd=0.1):
    groups = param_groups(model, wd, no_decay=no_decay)
    names = zip(groups, groups.names, strict=True)
    return {name for group, names in names if group["weight_decay"] == 0 for name in names}


def test_each_rule_spares_what_it_names():
    model = Everything()
    biases = {"conv.bias", "bn.bias", "ln.bias", "linear.bias", "out.bias"}
    norms = {"bn.weight", "bn.bias", "ln.weight", "ln.bias"}
    assert spared(model, "bias") == biases
    assert spared(model, "norm") == norms
    assert spared(model, "1d") == biases - {"ln.bias"} | {"bn.weight"}  # LayerNorm is 4 x 4 here
    assert spared(model, None) == spared(model, "norm, bias,1d") == biases | norms
    assert spared(model, "embed.*,*.weight") >= {"embed.weight", "conv.weight"}


def test_what_a_model_or_a_part_of_it_excludes_has_no_decay():
    assert spared(Encoder(), "none") == {"token"}
    assert spared(nn.Sequential(Encoder(), nn.Linear(1, 1)), "none") == {"0.token"}
    learn = Learner(Encoder(), toy_dls(), cbs=[TrainCB()], opt_func="adamw")
    learn.fit(1)
    assert [g["weight_decay"] for g in learn.opt.param_groups] == [0, 0.01]


def test_groups_print_as_a_table():
    table = repr(param_groups(linear(), 0.1)).splitlines()
    assert [line.split() for line in table] == [
        ["group", "tensors", "elements", "lr", "weight", "decay", "names"],
        ["0", "1", "3", "default", "0.1", "weight"],
        ["1", "1", "1", "default", "0", "bias"],
    ]


def test_weight_decay_is_refused_where_an_optimizer_knows_none():
    with pytest.raises(ValueError, match="Rprop has no weight decay"):
        toy_learner(opt_func=optimizer("rprop", wd=0.1)).fit(1)

    class Toy:
        def __init__(self, params, lr):
            pass

    with pytest.raises(TypeError, match="Toy is no torch.optim.Optimizer"):
        toy_learner(opt_func=Toy, lr=slice(0.1, 1)).fit(1)


# ---- layers and their rates ----


def test_stacks_of_blocks_are_unfolded_and_blocks_are_not():
    model = Encoder()
    assert [
        {name.split(".mix")[0].split(".norm")[0] for name in layer}
        for layer in named_layers(model, layer_groups(model))
    ] == LAYERS
    assert [len(layer) for layer in layer_groups(resnet(1, 10))] == [4, 10, 10, 10, 2]
    nested = nn.Sequential(nn.Sequential(*[Block() for _ in range(2)]), nn.Linear(3, 1))
    assert len(layer_groups(nested)) == 3
    assert len(layer_groups(linear())) == 1


def test_layer_decay_lowers_the_rate_from_layer_to_layer():
    learn = Learner(
        Encoder(), toy_dls(), lr=0.8, cbs=[TrainCB(), rec := RecorderCB("lr", groups=True)]
    )
    learn.opt_func = optimizer("sgd", layer_decay=0.5)
    learn.fit(1)
    assert rec.recs["lr"][0] == [0.05, 0.05, 0.1, 0.2, 0.4, 0.8]  # the token has its own, no decay


RATES = {
    (1e-4, 1e-2): [1e-4, 1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2],
    (1e-2,): [1e-3, 1e-3, 1e-2],  # the first of them is the token's, for it has no decay
}


@pytest.mark.parametrize("ends", RATES)
@pytest.mark.parametrize("opt_func", ["adamw", optim.AdamW, partial(optim.SGD, momentum=0.9)])
def test_a_slice_spreads_rates_over_the_layers(ends, opt_func):
    learn = Learner(Encoder(), toy_dls(), lr=slice(*ends), cbs=[TrainCB()], opt_func=opt_func)
    learn.fit(1)
    assert [g["lr"] for g in learn.opt.param_groups] == pytest.approx(RATES[ends])


def test_a_slice_over_one_layer_is_its_end():
    learn = toy_learner(lr=slice(1e-3, 0.5))
    learn.fit(1)
    assert [g["lr"] for g in learn.opt.param_groups] == [0.5]


def test_one_cycle_rises_to_the_rates_of_the_layers():
    learn = Learner(Encoder(), toy_dls(20), cbs=[TrainCB(), rec := RecorderCB("lr", groups=True)])
    learn.fit_one_cycle(1, slice(1e-4, 1e-2))
    highest = [max(rates) for rates in zip(*rec.recs["lr"], strict=True)]
    assert highest == pytest.approx(RATES[1e-4, 1e-2], rel=1e-2)


def test_a_splitter_says_what_the_layers_are():
    def split(model):
        return [[model.token, *model.embed.parameters()], model.blocks, model.head.weight, model]

    opt_func = optimizer("sgd", splitter=split)
    learn = Learner(Encoder(), toy_dls(), lr=slice(0.1, 0.8), cbs=[TrainCB()], opt_func=opt_func)
    learn.fit(1)
    sizes = [len(g["params"]) for g in learn.opt.param_groups]
    assert sizes == [1, 2, 12, 1, 1]  # the model's own token has no decay
    rates = [g["lr"] for g in learn.opt.param_groups]
    assert rates == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.8])
    learn.freeze_to(2)
    assert trainable(learn.model) == {"head.weight", "head.bias"}
    with pytest.raises(ValueError, match="the splitter left out token, embed.weight, embed.bias"):
        param_groups(Encoder(), splitter=lambda model: [model.blocks, model.head])


def test_layer_decay_needs_one_rate():
    with pytest.raises(ValueError, match="layer_decay=0.5 needs one learning rate"):
        param_groups(Encoder(), layer_decay=0.5)


# ---- freezing ----


def trainable(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_parts_are_frozen_by_name_or_by_layer():
    learn = Learner(Encoder(), toy_dls(), cbs=[TrainCB()])
    everything = trainable(learn.model)
    learn.freeze()
    assert trainable(learn.model) == {"head.weight", "head.bias"}
    learn.freeze_to(3)
    assert {name.rpartition(".")[0][:8] for name in trainable(learn.model)} == {"blocks.2", "head"}
    learn.unfreeze()
    assert trainable(learn.model) == everything
    learn.freeze("blocks", "embed.*")
    assert trainable(learn.model) == {"token", "head.weight", "head.bias"}
    learn.unfreeze("blocks.*.norm")
    assert len(trainable(learn.model)) == 3 + 6
    learn.freeze_to(0)
    assert trainable(learn.model) == everything


def test_names_and_numbers_of_nothing_are_refused():
    learn = Learner(Encoder(), toy_dls(), cbs=[TrainCB()])
    with pytest.raises(
        ValueError, match="no parameter is named like 'block'; did you mean 'blocks"
    ):
        learn.freeze("block")
    for n in (5, -6):
        with pytest.raises(ValueError, match=f"no layer {n}: the model has 5"):
            learn.freeze_to(n)


def norm_net():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False))
    return nn.Sequential(body, nn.Linear(4, 1))


def freezer(epoch, *names):
    return At(
        "before_epoch", lambda learn: learn.freeze(*names), lambda learn: learn.epoch == epoch
    )


class Snapshots(At):
    """Keeps the state of the model after each training epoch."""

    def __init__(self):
        self.states = []
        super().__init__("after_epoch", self.keep, lambda learn: learn.training, 99)

    def keep(self, learn):
        self.states.append({k: v.clone() for k, v in learn.model.state_dict().items()})


OPTIMIZERS = {
    "sgd": partial(optim.SGD, momentum=0.9, weight_decay=0.1),
    "adamw": partial(optim.AdamW, weight_decay=0.1),
}


def check_frozen(freeze_at_one, opt_func):
    """C097: from epoch 1 on the first part does not change, to the bit; the rest learns."""
    learn = Learner(norm_net(), (batches(4, 4), batches(1)), cbs=[TrainCB()], opt_func=opt_func)
    learn.fit(3, lr=0.05, cbs=[freeze_at_one, kept := Snapshots()])
    first, *later = kept.states
    for state in later:
        for name, value in state.items():
            same = torch.equal(value, first[name])
            assert same == name.startswith("0."), name
    return learn


@pytest.mark.case("C097")
@pytest.mark.parametrize("opt_func", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("names", [(), ("0",), ("0.*",)])
def test_weights_frozen_in_a_fit_stand_still_from_then_on(opt_func, names):
    learn = check_frozen(freezer(1, *names), opt_func)
    kept = {k: v.clone() for k, v in learn.model.state_dict().items() if k.startswith("0.")}
    learn.model.eval()  # as a model from a hub comes
    learn.fit(1, lr=0.05)
    assert all(torch.equal(v, learn.model.state_dict()[k]) for k, v in kept.items())


@pytest.mark.case("C097")
@pytest.mark.parametrize("opt_func", [*OPTIMIZERS.values(), "adagrad", "rprop", "radam"])
def test_weights_frozen_within_a_group_of_batches_do_not_move_with_it(opt_func):
    model = norm_net()

    def freeze(learn):
        model[0].requires_grad_(False)
        return [kept.append(p.clone()) for p in model[0].parameters()]

    kept, second = [], At("before_batch", freeze, lambda learn: learn.iter == 1)
    learn = Learner(model, (batches(4, 4),), cbs=[TrainCB(), GradAccumCB(2)], opt_func=opt_func)
    learn.fit(2, cbs=second)
    assert kept and all(map(torch.equal, kept, model[0].parameters()))


@pytest.mark.case("C097")
def test_the_check_of_freezing_notices_gradients_of_zero_and_moving_statistics():
    def zero(learn):
        for p in learn.model[0].parameters():
            p.grad = torch.zeros_like(p)

    def flags_only(learn):
        learn.model[0].requires_grad_(False)

    zeroes = At("before_step", zero, lambda learn: learn.epoch >= 1, 99)
    flags = At("before_epoch", flags_only, lambda learn: learn.epoch == 1)
    for faulty in (zeroes, flags):
        with pytest.raises(AssertionError):
            check_frozen(faulty, OPTIMIZERS["sgd"])


def test_batch_norm_goes_on_once_it_is_unfrozen():
    learn = Learner(norm_net(), (batches(4, 4),), cbs=[TrainCB()], lr=0.05)
    learn.freeze()
    assert [m.training for m in learn.model[0]] == [True, False, False]
    thaw = At("before_epoch", lambda learn: learn.unfreeze(), lambda learn: learn.epoch == 1)
    learn.fit(2, cbs=[thaw, kept := Snapshots()])
    start, (first, second) = norm_net().state_dict(), kept.states
    assert torch.equal(first["0.1.running_mean"], start["0.1.running_mean"])
    assert not torch.equal(second["0.1.running_mean"], first["0.1.running_mean"])
    learn.fit(1, cbs=[kept := Snapshots()])
    assert not torch.equal(kept.states[0]["0.2.running_var"], second["0.2.running_var"])
    assert all(m.training for m in learn.model.modules())


def test_a_batch_norm_that_the_user_put_in_eval_stays_there():
    learn = Learner(norm_net(), (batches(4, 4),), cbs=[TrainCB()], lr=0.05)
    learn.model[0][1].eval()
    learn.freeze("1")
    learn.fit(1)
    assert learn.model[0][1].running_mean.eq(0).all()
    assert learn.model[0][2].running_mean.ne(0).any()


def check_thaws(make_opt):
    """C098: frozen in epoch 0, the flag is set again in epoch 1, whose first update moves it."""
    learn = Learner(norm_net(), (batches(3, 4),), cbs=[TrainCB()], lr=0.05)
    learn.model[0].requires_grad_(False)
    make_opt(learn)
    states = [learn.model[0][0].weight.detach().clone()]
    keep = At(
        "after_step", lambda le: states.append(le.model[0][0].weight.detach().clone()), times=9
    )
    thaw = At(
        "before_epoch", lambda learn: learn.model.requires_grad_(True), lambda le: le.epoch == 1
    )
    learn.fit(2, cbs=[thaw, keep])
    assert all(torch.equal(state, states[0]) for state in states[:4])
    assert not torch.equal(states[4], states[3])


@pytest.mark.case("C098")
@pytest.mark.parametrize("opt_func", [optim.SGD, "adamw", optimizer("adamw", wd=0.1)])
def test_weights_learn_from_the_first_update_after_they_are_unfrozen(opt_func):
    def set_opt_func(learn):
        learn.opt_func = opt_func

    check_thaws(set_opt_func)


@pytest.mark.case("C098")
@pytest.mark.filterwarnings("ignore:the optimizer lacks")
def test_the_check_of_unfreezing_notices_an_optimizer_of_trainable_weights_only():
    class Few(optim.SGD):
        def __init__(self, params, lr):
            super().__init__([p for p in params if p.requires_grad], lr)

    with pytest.raises(AssertionError):
        check_thaws(lambda learn: setattr(learn, "opt_func", Few))


@pytest.mark.case("C098")
def test_a_given_optimizer_that_lacks_weights_is_named_when_the_fit_begins():
    model = norm_net()
    learn = toy_learner([], None, model, opt=optim.SGD(model[1].parameters(), 0.1))
    with pytest.warns(UserWarning, match="optimizer lacks 0.0.weight, 0.0.bias, .* and"):
        learn.fit(1)
    model[0].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(1)


def test_weights_that_appear_in_a_fit_are_noticed():
    def new_head(learn):
        learn.model[1] = nn.Linear(4, 1)

    at = At("before_epoch", new_head, lambda learn: learn.epoch == 1)
    with pytest.warns(UserWarning, match="optimizer lacks 1.weight, 1.bias"):
        toy_learner([at], None, norm_net()).fit(2)


@pytest.mark.case("C098")
def test_an_optimizer_that_left_frozen_weights_out_is_named_when_they_are_unfrozen():
    def of_trainable(params, lr):
        return optim.SGD([p for p in params if p.requires_grad], lr)

    learn = toy_learner([At("before_epoch", lambda learn: learn.unfreeze())], None, norm_net())
    learn.opt_func = of_trainable
    learn.freeze()
    with pytest.warns(UserWarning, match="optimizer lacks 0.0.weight"):
        learn.fit(1)


def test_fine_tuning_trains_the_head_first_and_then_all():
    learn = Learner(norm_net(), (batches(4, 4),), cbs=[TrainCB(), RecorderCB("lr", groups=True)])
    kept, fits = (
        Snapshots(),
        At("before_fit", lambda le: rates.append(le.opt.param_groups), times=9),
    )
    rates, start = [], norm_net().state_dict()
    learn.fine_tune(2, 0.1, freeze_epochs=2, cbs=[kept, fits])
    body = [k for k in start if k.startswith("0.")]
    head_only, all_of_it = kept.states[1], kept.states[3]
    assert all(torch.equal(head_only[k], start[k]) for k in body)
    assert not torch.equal(head_only["1.weight"], start["1.weight"])
    moved = ["0.0.weight", "0.1.running_mean", "0.2.running_var", "1.weight"]
    assert not any(torch.equal(all_of_it[k], start[k]) for k in moved)
    ends = [[g["initial_lr"] for g in groups] for groups in rates]
    assert ends == [pytest.approx([0.01, 0.1]), pytest.approx([0.0005, 0.05])]
    assert len(learn.history) == 2


def test_a_probe_in_which_something_is_frozen_leaves_nothing_frozen():
    learn = Learner(norm_net(), toy_dls(), cbs=[TrainCB(), freezer(0)])
    learn.dls = SimpleNamespace(train=batches(2, 4), valid=batches(2, 4))
    learn.dry_run()
    assert len(trainable(learn.model)) == 6
    assert all(m.training for m in learn.model.modules())
    learn.freeze()
    learn.cbs = [TrainCB(), At("before_epoch", lambda learn: learn.unfreeze())]
    learn.dry_run()
    assert trainable(learn.model) == {"1.weight", "1.bias"}
    assert [m.training for m in learn.model[0]] == [True, False, False]


# ---- optimizers with a closure ----


def test_lbfgs_equals_its_own_loop():
    ours, theirs, data = linear(), linear(), batches(3, 8)
    make = partial(optim.LBFGS, max_iter=5, line_search_fn="strong_wolfe")
    losses = []
    keep = At("after_batch", lambda learn: losses.append(learn.loss.item()), times=99)
    learn = Learner(ours, (data,), F.mse_loss, 0.5, [ClosureCB(), keep], make)
    learn.fit(2)
    opt, expected = make(theirs.parameters(), 0.5), []
    for x, y in data * 2:

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = F.mse_loss(theirs(x), y)
            loss.backward()
            return loss

        expected.append(opt.step(closure).item())
    assert_same_weights(ours, theirs)
    assert losses == expected
    assert learn.steps_done == 6


def test_without_a_closure_lbfgs_is_refused_before_the_first_batch():
    with pytest.raises(TypeError, match=r"LBFGS computes the loss itself.*add ClosureCB\(\)"):
        toy_learner(opt_func="lbfgs").fit(1)


@pytest.mark.parametrize("cb", [GradAccumCB(2), MixedPrecision("bf16")])
def test_a_closure_does_not_go_with_what_reaches_the_first_evaluation_only(cb):
    learn = Learner(linear(), toy_dls(), cbs=[ClosureCB(), cb], opt_func="lbfgs")
    with pytest.raises(ValueError, match=f"{type(cb).__name__} would reach only the first"):
        learn.fit(1)


# ---- C100, as far as a CPU can show it ----


@pytest.mark.case("C100")
@pytest.mark.parametrize("opt_func", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("first", [True, False])
def test_the_optimizer_holds_the_parameters_of_the_model(opt_func, first):
    cbs = [DeviceCB("cpu"), TrainCB()] if first else [TrainCB(), DeviceCB("cpu")]
    learn = Learner(linear(), toy_dls(3), cbs=cbs, opt_func=opt_func)
    learn.fit(1)
    held = [p for group in learn.opt.param_groups for p in group["params"]]
    assert all(a is b for a, b in zip(held, learn.model.parameters(), strict=True))


def test_an_opt_func_can_be_compared_and_shown():
    assert optimizer("sgd", momentum=0.9) == OptFunc(
        optim.SGD,
        {"wd": None, "no_decay": None, "layer_decay": None, "splitter": None},
        {"momentum": 0.9},
    )
    assert isinstance(BatchSchedCB(partial(optim.lr_scheduler.StepLR, step_size=1)), BatchSchedCB)


def test_a_rate_for_one_fit_reaches_an_optimizer_that_is_kept_with_ratios():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
    opt = torch.optim.SGD(groups, lr=0.2)
    learn = Learner(model, toy_dls(), cbs=[TrainCB()], opt=opt)
    learn.fit(1, lr=0.02)
    assert [g["lr"] for g in opt.param_groups] == pytest.approx([0.01, 0.02])
    learn.fit(1)
    assert [g["lr"] for g in opt.param_groups] == pytest.approx([0.01, 0.02])


def test_a_rate_for_one_fit_reaches_the_optimizer_of_the_fit_before():
    learn = Learner(linear(), toy_dls(), lr=0.1, cbs=[TrainCB()])
    learn.fit(1)
    opt = learn.opt
    learn.fit(1, lr=0.01, reset_opt=False)
    assert learn.opt is opt and opt.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_rate_that_cannot_be_handed_on_is_an_error():
    class Steps:
        def step(self):
            pass

        def zero_grad(self):
            pass

    learn = Learner(linear(), toy_dls(), cbs=[TrainCB()], opt=Steps())
    learn.fit(1)
    with pytest.raises(ValueError, match="kept from before"):
        learn.fit(1, lr=0.1)


# ---- F17: what a name brings ----


class Lars(optim.SGD):
    """Stands for an optimizer of timm."""

    def __init__(self, params, lr, weight_decay=0.1, trust_clip=False, **kwargs):
        super().__init__(params, lr, weight_decay=weight_decay, **kwargs)
        self.trust_clip = trust_clip


@dataclass(frozen=True)
class OptimInfo:
    """As timm's registry has it."""

    opt_class: type
    has_momentum: bool = False
    defaults: dict | None = None


TIMMS = {
    "lars": OptimInfo(Lars, True),
    "nlarc": OptimInfo(Lars, True, {"nesterov": True, "trust_clip": True}),
    "lamb": OptimInfo(optim.Adam),
}


def by_timm(params, name, lr, weight_decay=0.0, momentum=0.9, **kwargs):
    """The part of timm's `create_optimizer` that chooses options."""
    info = TIMMS[name]
    args = {"weight_decay": weight_decay, **kwargs, **(info.defaults or {})}
    if info.has_momentum:
        args.setdefault("momentum", momentum)
    return info.opt_class(params, lr=lr, **args)


@pytest.fixture
def timms(monkeypatch):
    timm = types.ModuleType("timm.optim")
    timm.list_optimizers = lambda: list(TIMMS)
    timm.get_optimizer_info = TIMMS.__getitem__

    def get_optimizer_class(name):
        info = TIMMS[name]
        return partial(info.opt_class, **info.defaults) if info.defaults else info.opt_class

    timm.get_optimizer_class = get_optimizer_class
    monkeypatch.setitem(sys.modules, "timm", types.ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.optim", timm)
    return timm


def check_name(name, **kwargs):
    ours = optimizer(name, **kwargs)(linear(), 0.1)
    theirs = by_timm(linear().parameters(), name, 0.1, **kwargs)
    assert ours.defaults == theirs.defaults
    assert getattr(ours, "trust_clip", None) == getattr(theirs, "trust_clip", None)


@pytest.mark.case("F17")
@pytest.mark.parametrize("name", TIMMS)
def test_a_name_of_timm_brings_what_its_factory_brings(name, timms):
    check_name(name)
    assert optimizer(name).__name__ == TIMMS[name].opt_class.__name__


@pytest.mark.case("F17")
def test_arguments_win_over_what_a_name_brings(timms):
    assert optimizer("lars", momentum=0.5)(linear(), 0.1).defaults["momentum"] == 0.5
    groups = optimizer("lars", wd=0.2)(linear(), 0.1).param_groups
    assert sorted(g["weight_decay"] for g in groups) == [0.0, 0.2]
    assert optimizer("momentum", momentum=0.5)(linear(), 0.1).defaults["momentum"] == 0.5


@pytest.mark.case("F17")
def test_the_check_notices_a_class_without_its_momentum(timms, monkeypatch):
    monkeypatch.setattr(
        optimizer_module, "_of_timm", lambda timms, name: (TIMMS[name].opt_class, {})
    )
    with pytest.raises(AssertionError):
        check_name("lars")


@pytest.mark.case("F17")
@pytest.mark.parametrize(
    ("name", "nesterov"), [("momentum", False), ("nesterov", True), ("rmsprop", None)]
)
def test_torchs_names_that_promise_a_momentum_have_one(name, nesterov):
    defaults = toy_fit_defaults(name)
    assert defaults["momentum"] == 0.9 and defaults.get("nesterov") == nesterov
    assert toy_fit_defaults("sgd")["momentum"] == 0


def toy_fit_defaults(name):
    learn = toy_learner(opt_func=name)
    learn.fit(1)
    return learn.opt.defaults


# ---- F20: the rate of an optimizer that is kept ----


def used(learn, *fits, **kwargs):
    """Return the rate of the first update of each fit; a number sets `learn.lr` before it."""
    rates = []
    for lr in fits:
        if lr is not None:
            learn.lr = lr
        note = At("before_step", lambda learn: rates.append(learn.opt.param_groups[0]["lr"]))
        learn.fit(1, cbs=note, **kwargs)
    return rates


def ready(**kwargs):
    model = linear()
    return toy_learner(model=model, opt=optim.SGD(model.parameters(), 0.5), **kwargs)


@pytest.mark.case("F20")
def test_a_ready_optimizer_takes_the_rate_that_the_learner_is_given():
    assert used(ready(), None, 0.04, None) == [0.5, 0.04, 0.04]
    assert used(ready(lr=0.1), None) == [0.1]
    assert used(ready(lr=None), None) == [0.5]


@pytest.mark.case("F20")
def test_a_kept_optimizer_takes_the_rate_that_the_learner_is_given():
    assert used(toy_learner(lr=0.3), None, None, 0.2, reset_opt=False) == [0.3, 0.3, 0.2]


@pytest.mark.case("F20")
def test_a_rate_set_in_the_optimizer_itself_stays():
    learn = ready()
    assert used(learn, 0.04) == [0.04]
    learn.opt.param_groups[0]["lr"] = 0.01
    assert used(learn, None) == [0.01]
    learn.fit(1, lr=0.7)
    assert used(learn, None) == [0.7]


@pytest.mark.case("F20")
def test_the_check_notices_a_rate_that_is_passed_over(monkeypatch):
    monkeypatch.setattr(Learner, "_set_lr", lambda self, lr: None)
    with pytest.raises(AssertionError):
        assert used(ready(), 0.04) == [0.04]


# ---- F19: frozen parts do not move ----


def body(middle):
    return nn.Sequential(nn.Linear(3, 4), middle, nn.ReLU(), nn.Linear(4, 1))


BODIES = {
    "batch norm": lambda: body(nn.BatchNorm1d(4)),
    "without weights": lambda: body(nn.BatchNorm1d(4, affine=False)),
    "without weights, first": lambda: nn.Sequential(
        nn.BatchNorm1d(3, affine=False), *body(nn.ReLU())
    ),
    "without weights, in a block": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)), nn.Linear(4, 1)
    ),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)),
        nn.Conv1d(1, 2, 1),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(6, 1),
    ),
    "spectral norm": lambda: body(spectral_norm(nn.Linear(4, 4))),
    "spectral norm of old": lambda: body(nn.utils.spectral_norm(nn.Linear(4, 4))),
}


def check_still(model, freeze):
    """Nothing but the last layer moves."""
    learn = toy_learner(model=model, dls=(batches(4), batches(1)), opt_func=optim.AdamW)
    freeze(learn)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    learn.fit(2)
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {k for k in before if k.startswith(f"{len(model) - 1}.")}


@pytest.mark.case("F19")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
def test_a_frozen_body_moves_no_weight_and_no_buffer(make):
    check_still(make(), lambda learn: learn.freeze())


@pytest.mark.case("F19")
def test_a_layer_that_has_only_buffers_is_frozen_by_its_name():
    model = body(nn.BatchNorm1d(4, affine=False))
    check_still(model, lambda learn: learn.freeze("0", "1"))
    learn = toy_learner(model=model)
    learn.unfreeze()
    learn.freeze("1")
    learn.freeze("3.bias")
    before = model[1].running_mean.clone()
    learn.fit(1)
    assert torch.equal(model[1].running_mean, before)
    learn.unfreeze("1")
    learn.fit(1)
    assert not torch.equal(model[1].running_mean, before)
    with pytest.raises(ValueError, match="named like '2'"):
        learn.freeze("2")


@pytest.mark.case("F19")
def test_a_norm_without_weights_in_a_head_that_learns_goes_on():
    head = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1))
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)), head)
    learn = toy_learner(model=model)
    learn.freeze("0")
    learn.fit(1)
    assert not head[0].running_mean.eq(0).all() and model[0][1].running_mean.eq(0).all()


@pytest.mark.case("F19")
def test_the_check_notices_statistics_that_move(monkeypatch):
    monkeypatch.setattr(freeze_module, "hold_frozen", lambda *args: None)
    for make in (BODIES["without weights"], BODIES["spectral norm"]):
        with pytest.raises(AssertionError):
            check_still(make(), lambda learn: learn.freeze())


# ---- slow weights ----

INNER = {
    "sgd": optim.SGD,
    "momentum": partial(optim.SGD, momentum=0.9),
    "adamw": partial(optim.AdamW, foreach=True),
}


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize(("k", "alpha"), [(1, 0.5), (3, 0.8), (5, 1.0)])
def test_lookahead_is_k_steps_forward_and_one_back(name, k, alpha):
    data, epochs = batches(7), 2
    ours, theirs = linear(), linear()
    func = lookahead(INNER[name], k=k, alpha=alpha)
    Learner(ours, (data, None), F.mse_loss, 0.05, TrainCB(), func).fit(epochs)
    opt, step = INNER[name](theirs.parameters(), 0.05), 0
    slow = [p.detach().clone() for p in theirs.parameters()]
    for x, y in data * epochs:
        F.mse_loss(theirs(x), y).backward()
        opt.step()
        opt.zero_grad()
        step += 1
        if step % k == 0:
            with torch.no_grad():
                for p, s in zip(theirs.parameters(), slow, strict=True):
                    s += alpha * (p - s)
                    p.copy_(s)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=1e-6)
    assert k > 1 or alpha == 1 or not torch.equal(ours.weight, linear().weight)


def test_lookahead_goes_by_name_and_with_groups():
    learn = toy_learner(opt_func=optimizer("lookahead_adamw", wd=0.1))
    learn.fit(3)
    assert isinstance(learn.opt, optim.AdamW)
    assert optimizer(lookahead(optim.AdamW)).__name__ == "lookahead_AdamW"
    assert [group["weight_decay"] for group in learn.opt.param_groups] == [0.1, 0.0]
    state = learn.opt.state[learn.model.weight]
    assert state["slow_step"] == 6 and torch.equal(state["slow"], learn.model.weight)
    for bad in ({"k": 0}, {"alpha": 0}, {"alpha": 1.5}):
        with pytest.raises(ValueError, match="got"):
            lookahead(optim.SGD, **bad)
    with pytest.raises(ValueError, match="no optimizer 'adamv'; did you mean"):
        optimizer("lookahead_adamv")


def test_parameters_that_learn_later_have_slow_weights_from_then_on():
    model = nn.Sequential(linear(n_out=3), linear())
    model[0].requires_grad_(False)
    learn = toy_learner(model=model, opt_func=lookahead(optim.AdamW, k=2))
    learn.on("before_epoch", lambda learn: learn.unfreeze(), when=lambda learn: learn.epoch == 1)
    learn.fit(3, valid=False)
    steps = [learn.opt.state[p]["slow_step"] for p in model.parameters()]
    assert steps == [4, 4, 6, 6]


@pytest.mark.parametrize("at", [3, 5])
def test_a_killed_fit_with_lookahead_goes_on_to_the_bit(at, tmp_path):
    def make(*cbs):
        func = optimizer(lookahead(optim.AdamW, k=4))
        return toy_learner([*cbs], (batches(6), None), opt_func=func, lr=0.05)

    whole = make()
    whole.fit(3)
    kill = At("before_batch", KeyboardInterrupt, lambda learn: learn.steps_done == at)
    with pytest.raises(KeyboardInterrupt):
        make(CheckpointCB(tmp_path, (1, "step")), kill).fit(3)
    resumed = make()
    resumed.fit(3, resume=tmp_path)
    assert resumed.steps_done == 18
    assert_same_weights(whole.model, resumed.model)


# ---- second order ----


class SecondOrder(optim.SGD):
    """Marked as timm marks its AdaHessian; its step needs the graph of the gradients."""

    is_second_order = True

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            (curvature,) = torch.autograd.grad(p.grad.sum(), p, retain_graph=True)
            p.data -= self.param_groups[0]["lr"] * p.grad.detach() / (1 + curvature.abs())


class KeepsTheGraph(TrainCB):
    def backward(self, learn):
        learn.loss.backward(create_graph=True)


def test_an_optimizer_of_second_order_is_refused_at_the_start_or_works_with_the_graph():
    for cbs in ([], [MixedPrecision("bf16")]):
        learn = toy_learner(cbs, opt_func=SecondOrder)
        before = learn.model.weight.detach().clone()
        with pytest.raises(TypeError, match=r"SecondOrder differentiates.*create_graph=True"):
            learn.fit(1)
        assert torch.equal(learn.model.weight, before)
    model, data = linear(), batches(4)
    Learner(model, (data, None), F.mse_loss, 0.1, KeepsTheGraph(), SecondOrder).fit(1)
    theirs = linear()
    for x, y in data:  # of a mean of squares the second derivative is known
        grad = [2 * (theirs(x) - y).mean(0), 2 * ((theirs(x) - y) * x).mean(0)]
        row = torch.cat([x, torch.ones(len(x), 1)], 1)
        hessian = 2 * (row.T @ row) / len(x)
        with torch.no_grad():
            theirs.weight -= 0.1 * grad[1] / (1 + hessian[:3, :3].sum(0).abs())
            theirs.bias -= 0.1 * grad[0] / (1 + hessian[3, 3].abs())
    torch.testing.assert_close(model.state_dict(), theirs.state_dict())


# ---- K4: names and options do what they say, or are refused ----


@pytest.mark.case("F17")
@pytest.mark.parametrize(
    ("name", "momentum"),
    [("MOMENTUM", 0.9), ("lookahead_momentum", 0.9), ("Lookahead_RMSprop", 0.9), ("SGD", 0)],
)
def test_a_name_in_any_case_and_in_lookahead_has_its_momentum(name, momentum):
    assert toy_fit_defaults(name)["momentum"] == momentum
    given = optimizer(name, momentum=0.25)
    assert given(linear(), 0.1).defaults["momentum"] == 0.25


@pytest.mark.case("F17")
@pytest.mark.parametrize("lookahead", ["", "lookahead_"])
@pytest.mark.parametrize("name", [n for n in vars(optim) if n[0].isupper() and n != "Optimizer"])
def test_every_optimizer_of_torch_trains_by_its_name(name, lookahead):
    model, data, cb = linear(), batches(2), TrainCB()
    if name == "Muon":  # for matrices
        model = nn.Linear(3, 1, bias=False)
    if name == "SparseAdam":
        model = nn.EmbeddingBag(5, 1, sparse=True)
        data = [(torch.tensor([[0, 1], [2, 3]]), y) for _, y in data]
    if name == "LBFGS":
        cb = ClosureCB()
    learn = Learner(model, (data, None), F.mse_loss, 0.01, cb, lookahead + name.lower())
    before = [p.detach().clone() for p in model.parameters()]
    learn.fit(1)
    assert learn.steps_done == 2 and name.lower() in type(learn.opt).__name__.lower()
    assert not any(map(torch.equal, before, model.parameters()))


@pytest.mark.case("F16")
@pytest.mark.parametrize("pattern", ["embed", "*.embed", "biass", "norm,Head*", "0.weight, 9.*"])
def test_a_pattern_that_spares_nothing_is_refused(pattern):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="no_decay: no parameter is named like"):
        optimizer("adamw", wd=0.1, no_decay=pattern)(model, 0.1)
    spared = optimizer("adamw", wd=0.1, no_decay="0.*,*.bias")(model, 0.1)
    assert sorted(g["weight_decay"] for g in spared.param_groups) == [0.0, 0.1]


@pytest.mark.case("F20")
@pytest.mark.parametrize("func", [optim.AdamW, "adamw", partial(optim.SGD, momentum=0.9)])
def test_an_optimizer_that_is_ready_and_one_to_be_made_are_not_given_both(func):
    model = linear()
    with pytest.raises(TypeError, match="opt is ready, and opt_func="):
        toy_learner(model=model, opt=optim.SGD(model.parameters(), 0.5), opt_func=func)
