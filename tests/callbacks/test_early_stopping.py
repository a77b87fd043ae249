"""When a fit ends before its time, and with which weights."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler
from toys import At, batches, linear, toy_dls, toy_learner

from minilearn import (
    EMACB,
    BatchSchedCB,
    Callback,
    CancelFitException,
    CancelRoundException,
    CheckpointCB,
    ClipGradCB,
    EarlyStopCB,
    GradAccumCB,
    Learner,
    LogCB,
    MetricsCB,
    MixedPrecision,
    MixUpCB,
    Order,
    ProgressCB,
    TimeLimitCB,
    TrainCB,
    constant,
    warmup,
)
from minilearn.callbacks import early_stopping as stopping
from minilearn.callbacks.monitor import Monitor
from tests.rates import Row

NAN, INF = float("nan"), float("inf")


class Best(Callback):
    """Notes the rounds that beat the best, as a checkpoint callback would."""

    order = Order.SAVE

    def __init__(self, stop):
        self.stop, self.rounds, self.last = stop, [], 0

    def after_round(self, learn):
        self.last += 1

    def cleanup_round(self, learn):  # runs after the stopper has decided
        if self.stop.count == 0 and self.stop.best_epoch == learn.epoch:
            self.rounds.append(learn.epoch)


def watch(values, make=EarlyStopCB, name="valid_loss", **kwargs):
    """Fit on such values; return the rounds that were run, those that were better, the stopper."""
    stop = make(name, **kwargs)
    best = Best(stop)
    learn = toy_learner([Row(name, values), stop, best])
    learn.fit(len(values))
    return len(learn.history), best.rounds, stop


# ---- patience ----


class Late(EarlyStopCB):
    """Broken: compares before it counts."""

    def after_round(self, learn):
        patience, self.patience = self.patience, self.patience + 1
        try:
            super().after_round(learn)
        finally:
            self.patience = patience


def check_patience(make):
    rounds, _, stop = watch([1.0, 0.9, 0.95, 0.92, 0.5], make, mode="min", patience=2)
    assert (rounds, stop.stopped, stop.monitor.best) == (4, 3, 0.9)


@pytest.mark.case("C059")
def test_the_fit_ends_after_the_last_validation_that_patience_allows():
    check_patience(EarlyStopCB)


@pytest.mark.case("C059")
def test_a_stop_one_epoch_late_would_be_seen():
    with pytest.raises(AssertionError):
        check_patience(Late)


@pytest.mark.case("C059")
@pytest.mark.parametrize("patience", [0, -1, 1.5])
def test_patience_below_one_raises(patience):
    with pytest.raises(ValueError, match="patience"):
        EarlyStopCB("valid_loss", patience=patience)


# ---- the least improvement ----

UP = [0.500, 0.505, 0.509, 0.512]
DOWN = [1.0, 0.995, 0.991, 0.985]


def check_least_gain():
    assert watch(UP, mode="max", min_delta=0.01, patience=9)[:2] == (4, [0, 3])
    assert watch(DOWN, mode="min", min_delta=0.01, patience=9)[:2] == (4, [0, 3])
    assert watch(UP, mode="max", min_delta=0.01, patience=2)[0] == 3
    assert watch(DOWN, mode="min", min_delta=0.01, patience=2)[0] == 3


@pytest.mark.case("C060")
def test_the_least_gain_is_over_the_best_so_far():
    check_least_gain()


def wrong_sign(self, value):
    if self.best is None:
        return True
    sign = 1 if self.mode == "min" else -1
    return sign * (value - self.best) < self.min_delta


def over_the_previous(self, value):
    last, self.last = getattr(self, "last", None), value
    sign = 1 if self.mode == "min" else -1
    return last is None or sign * (last - value) > self.min_delta


@pytest.mark.case("C060")
@pytest.mark.parametrize("better", [wrong_sign, over_the_previous])
def test_a_wrong_comparison_would_be_seen(better, monkeypatch):
    monkeypatch.setattr(Monitor, "better", better)
    with pytest.raises(AssertionError):
        check_least_gain()


# ---- values that are not finite ----


def check_not_finite():
    for bad in (NAN, INF, -INF):
        rounds, better, stop = watch([bad, 0.8, bad, 0.7], mode="min", patience=9)
        assert (rounds, better, stop.monitor.best) == (4, [1, 3], 0.7)
        assert watch([0.5, bad, bad, 0.1], mode="min", patience=2)[0] == 3


@pytest.mark.case("C061")
def test_values_that_are_not_finite_are_never_better_and_block_nothing():
    check_not_finite()


def by_comparison(self, value):
    return self.best is None or value < self.best


def unless_worse(self, value):
    return self.best is None or not value >= self.best


@pytest.mark.case("C061")
@pytest.mark.parametrize("better", [by_comparison, unless_worse])
def test_plain_comparisons_would_be_seen(better, monkeypatch):
    monkeypatch.setattr(Monitor, "better", better)
    with pytest.raises(AssertionError):
        check_not_finite()


# ---- a second fit ----


def check_second_fit(stop):
    data = [0.5, 0.6, 0.7, 0.8]
    for start in (0.0, 1.0):  # the second model is worse than the first was at its best
        learn = toy_learner([Row("valid_loss", [start + v for v in data]), stop])
        learn.fit(4)
        assert len(learn.history) == 3
        assert (stop.monitor.best, stop.count, stop.stopped) == (start + 0.5, 2, 2)


@pytest.mark.case("C062")
def test_the_same_stopper_starts_anew_in_a_second_fit():
    check_second_fit(EarlyStopCB(patience=2))


@pytest.mark.case("C062")
def test_a_stopper_that_goes_on_would_be_seen_and_does_so_when_asked():
    with pytest.raises(AssertionError):
        check_second_fit(EarlyStopCB(patience=2, keep=True))


@pytest.mark.case("C062")
@pytest.mark.parametrize("when", ["before the fit", "in it"])
def test_a_resumed_stopper_goes_on(when):
    first, second = EarlyStopCB(patience=3), EarlyStopCB(patience=3)
    toy_learner([Row("valid_loss", [0.5, 0.6]), first]).fit(2)
    learn = toy_learner([Row("valid_loss", [0.7, 0.8, 0.4]), second])
    load = lambda learn=None: second.load_state_dict(first.state_dict())  # noqa: E731
    if when == "before the fit":
        load()
    else:
        learn.add_cb(At("before_round", load))
    learn.fit(5)
    assert (len(learn.history), second.monitor.best) == (2, 0.5)
    check_second_fit_after(second)


def check_second_fit_after(stop):
    """What was loaded counts for one fit."""
    toy_learner([Row("valid_loss", [0.9, 1.0]), stop]).fit(2)
    assert (stop.monitor.best, stop.count) == (0.9, 1)


# ---- direction and names ----


def check_direction():
    for name in ("accuracy", "f1", "loss_ratio"):
        with pytest.raises(ValueError, match="mode='min' or 'max'"):
            EarlyStopCB(name)
    assert EarlyStopCB("valid_loss").monitor.mode == "min"
    assert EarlyStopCB("train_loss").monitor.mode == "min"
    assert watch([0.5, 0.6, 0.4, 0.7], name="accuracy", mode="max", patience=9)[1] == [0, 1, 3]


@pytest.mark.case("C063")
def test_the_direction_must_be_given_unless_it_is_a_loss():
    check_direction()


@pytest.mark.case("C063")
def test_a_default_direction_would_be_seen(monkeypatch):
    init = Monitor.__init__
    monkeypatch.setattr(
        Monitor,
        "__init__",
        lambda self, name, mode=None, *rest: init(self, name, mode or "min", *rest),
    )
    with pytest.raises(BaseException, match="DID NOT RAISE"):
        check_direction()


def test_a_column_that_does_not_exist_is_found_with_the_first_validation():
    with pytest.raises(KeyError, match="accuracy"):
        toy_learner([MetricsCB(), EarlyStopCB("accuracy", "max")]).fit(2)


def test_rounds_without_a_validation_do_not_count():
    stop = EarlyStopCB(patience=1)
    learn = toy_learner([Row("valid_loss", [1.0, 0.9, 2.0]), stop])
    learn.fit(9, valid_every=2)
    assert (stop.stopped, len(learn.history)) == (5, 6)
    stop = EarlyStopCB(patience=1)
    skip = At("before_epoch", CancelRoundException, lambda learn: learn.epoch == 1)
    toy_learner([Row("valid_loss", [1.0, 0.9, 2.0]), stop, skip]).fit(9)
    assert stop.stopped == 3


# ---- the order in the list ----


class Saver(Callback):
    """Notes what it sees at the end of each round."""

    def __init__(self):
        self.seen = []

    def after_round(self, learn):
        self.seen.append((learn.epoch, learn.row.get("valid_loss")))


class EarlySaver(Saver):
    """Broken: looks before the metrics are there."""

    order = Order.METRICS
    after_round = None

    def after_epoch(self, learn):
        if not learn.training:
            self.seen.append((learn.epoch, learn.row.get("valid_loss")))


def check_orders(make):
    results = []
    for order in itertools.permutations(range(3)):
        saver = make()
        cbs = [MetricsCB(), saver, EarlyStopCB(patience=2, min_delta=0.05)]
        model = linear()
        learn = toy_learner([cbs[i] for i in order], (batches(3), batches(2)), model)
        learn.fit(9, lr=0.3)
        history = [{k: v for k, v in row.items() if k != "time"} for row in learn.history]
        results.append((saver.seen, cbs[2].stopped, history))
    assert results[0][1] is not None
    assert all(result == results[0] for result in results)


@pytest.mark.case("C070")
def test_metrics_checkpoints_and_stoppers_may_be_listed_in_any_order():
    check_orders(Saver)


@pytest.mark.case("C070")
def test_a_checkpoint_before_the_metrics_would_be_seen():
    with pytest.raises(AssertionError):
        check_orders(EarlySaver)


# ---- the best weights ----


class States(Callback):
    in_probe = True

    def __init__(self):
        self.judged = []

    def after_predict(self, learn):
        if not learn.training:
            self.judged.append(copy.deepcopy(learn.model.state_dict()))


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


ENDS = {
    "the end": None,
    "a cancel": CancelFitException,
    "an error": ValueError("no"),
    "an interrupt": KeyboardInterrupt(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("averages", [[], [EMACB(0.5)], [EMACB(0.5, keep=True)]])
def test_the_best_weights_are_back_however_the_fit_ended(end, averages):
    stop, states = EarlyStopCB(patience=9, restore_best=True), States()
    last = lambda learn: learn.epoch == 3 and learn.training  # noqa: E731
    ends = [At("before_backward", ENDS[end], last)] if ENDS[end] else []
    values = [0.9, 0.5, 0.7, 0.6]
    cbs = [*averages, Row("valid_loss", values), stop, states, *ends, MetricsCB()]
    cbs[-1].order = Order.METRICS - 1  # so that the values of Row are the ones that count
    learn = toy_learner(cbs)
    try:
        learn.fit(4)
    except (ValueError, KeyboardInterrupt):
        pass
    assert stop.best_epoch == 1
    assert same(learn.model.state_dict(), states.judged[1])
    # and these are what is evaluated from now on, though averages still replace the weights
    best = linear()
    best.load_state_dict(states.judged[1])
    with torch.no_grad():
        assert torch.equal(learn.get_preds()[0], best(learn.dls[1][0][0]))


def test_without_restore_best_the_last_weights_stay():
    stop, states = EarlyStopCB(patience=9), States()
    learn = toy_learner([Row("valid_loss", [0.9, 0.5, 0.7]), stop, states])
    learn.fit(3)
    assert same(learn.model.state_dict(), states.judged[2])


def test_the_best_weights_survive_a_resume():
    first, second, states = EarlyStopCB(restore_best=True), EarlyStopCB(restore_best=True), States()
    toy_learner([Row("valid_loss", [0.9, 0.5]), first, states]).fit(2)
    learn = toy_learner([Row("valid_loss", [0.7, 0.6]), second])
    second.load_state_dict(first.state_dict())
    learn.fit(2)
    assert same(learn.model.state_dict(), states.judged[1])


def test_a_dry_run_does_not_disturb_a_stopper():
    stop = EarlyStopCB(restore_best=True)
    learn = toy_learner([MetricsCB(), stop])
    learn.fit(2)
    best, state = stop.monitor.best, copy.deepcopy(learn.model.state_dict())
    learn.dry_run()
    assert stop.monitor.best == best
    assert same(learn.model.state_dict(), state)


# ---- a time limit ----


def test_the_time_limit_ends_the_epoch_and_validates_before_the_end(monkeypatch):
    now = itertools.count(step=10)  # each look at the clock takes ten seconds
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(now))
    limit = TimeLimitCB(minutes=1)
    learn = toy_learner([MetricsCB(), limit], (batches(10), batches(2)))
    learn.fit(5)
    assert learn.steps_done == 6
    assert len(learn.history) == 1
    assert learn.history[0]["valid_loss"] is not None


def test_time_left_lets_the_fit_run_to_its_end():
    learn = toy_learner([TimeLimitCB(minutes=60)])
    learn.fit(2)
    assert learn.steps_done == 4
    with pytest.raises(ValueError, match="minutes"):
        TimeLimitCB(0)


# ---- together with every other recipe ----

RECIPES = {
    "accumulation": lambda: GradAccumCB(2),
    "clipping": lambda: ClipGradCB(0.1),
    "bf16": lambda: MixedPrecision("bf16"),
    "warm-up": lambda: BatchSchedCB(warmup(constant, n=3)),
    "one cycle": lambda: BatchSchedCB(partial(lr_scheduler.OneCycleLR, max_lr=0.1)),
    "mixup": lambda: MixUpCB(),
    "averages": lambda: EMACB(0.5),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_with_any_recipe_the_fit_is_the_first_part_of_the_one_that_goes_on(recipe):
    states = []
    for stop in (EarlyStopCB(patience=2, min_delta=9.0), None):
        weights = States()
        torch.manual_seed(3)
        cbs = [MetricsCB(), RECIPES[recipe](), weights, *([stop] if stop else [])]
        learn = toy_learner(cbs, (batches(5), batches(2)))
        learn.fit(6)
        states.append((weights.judged, learn.history["valid_loss"]))
    (stopped, losses), (whole, all_losses) = states
    assert (len(losses), len(all_losses)) == (3, 6)
    assert losses == all_losses[:3]
    assert all(same(a, b) for a, b in zip(stopped, whole[: len(stopped)], strict=True))


def test_a_run_that_was_stopped_early_trains_nothing_more_when_it_is_resumed(tmp_path):
    def run(**kwargs):
        cbs = [
            TrainCB(),
            MetricsCB(),
            EarlyStopCB(patience=1, min_delta=1e9),
            CheckpointCB(tmp_path),
        ]
        learn = Learner(linear(), toy_dls(), cbs=cbs)
        learn.fit(5, **kwargs)
        return learn

    stopped = run()
    assert len(stopped.history) == 2  # the second was not better, and patience is 1
    resumed = run(resume=True)
    assert resumed.history["valid_loss"] == stopped.history["valid_loss"]
    assert torch.equal(resumed.model.weight, stopped.model.weight)


# ---- what counts as better, and from when ----


def keras_rule(values, patience, min_delta=0.0, relative=False, start_from=0, divergence=None):
    """Return rounds that were run and the best epoch, counted by hand for mode "min"."""
    best, best_epoch, waited = None, None, 0
    for epoch, value in enumerate(values):
        if divergence is not None and not value <= divergence:
            return epoch + 1, best_epoch
        if epoch < start_from:
            continue
        least = min_delta * abs(best or 0) if relative else min_delta
        if best is None or best - value > least:
            best, best_epoch, waited = value, epoch, 0
        else:
            waited += 1
            if waited == patience:
                return epoch + 1, best_epoch
    return len(values), best_epoch


@pytest.mark.parametrize(
    "options",
    [
        {"min_delta": 0.05},
        {"min_delta": 0.05, "relative": True},
        {"start_from": 3},
        {"start_from": 3, "min_delta": 0.02, "relative": True},
        {"divergence": 9.5},
        {"divergence": 5.0},
    ],
    ids=str,
)
def test_each_option_decides_as_a_loop_by_hand(options):
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        values = (torch.rand(12, generator=generator) * 10 / torch.arange(1, 13)).tolist()
        rounds, _, stop = watch(values, patience=2, **options)
        assert (rounds, stop.best_epoch) == keras_rule(values, 2, **options)


@pytest.mark.parametrize("bad", [NAN, INF, 3.5])
def test_a_fit_that_diverges_ends_at_once(bad):
    rounds, _, stop = watch([1.0, 2.0, bad, 0.5], patience=9, divergence=3.0)
    assert (rounds, stop.stopped) == (3, 2)
    rounds, _, _ = watch([0.5, 0.2, 0.9], name="f1", mode="max", patience=9, divergence=0.3)
    assert rounds == 2


# ---- why the fit ended ----


def test_one_line_says_why_the_fit_ended_and_which_round_was_best(capsys, tmp_path):
    stop = EarlyStopCB(patience=2)
    learn = toy_learner([Row("valid_loss", [1.0, 0.5, 0.6, 0.7]), stop])
    assert learn.stopped is None
    learn.fit(9)
    why = "stopped after epoch 3: valid_loss was not better 2 times in a row"
    assert learn.stopped == f"{why}; the best was 0.5, epoch 1"
    assert capsys.readouterr().out == learn.stopped + "\n"
    learn.fit(2, cbs=LogCB(path=tmp_path))
    assert learn.stopped is None
    learn.fit(9, cbs=LogCB(path=tmp_path))
    assert (tmp_path / "log.txt").read_text().count("stopped after") == 1
    assert capsys.readouterr().out.count("stopped after") == 1


def test_the_line_comes_after_the_table(capsys):
    learn = toy_learner([MetricsCB(), ProgressCB(), EarlyStopCB(divergence=0.0)])
    learn.fit(3)
    *_, row, last = capsys.readouterr().out.splitlines()
    assert row.split()[0] == "0" and last.startswith("stopped after epoch 0: valid_loss is")


def test_a_time_limit_says_so_with_the_best_round(monkeypatch):
    now = iter(range(0, 10**6, 10))
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(now))
    learn = toy_learner([Row("valid_loss", [0.9, 0.4, 0.8, 0.9]), TimeLimitCB(2)])
    learn.fit(99)
    why = "stopped after epoch {}: 2 minutes are over; the best valid_loss was 0.4, epoch 1"
    assert learn.stopped == why.format(learn.history["epoch"][-1])


def test_a_dry_run_leaves_nothing_behind():
    learn = toy_learner([Row("valid_loss", [1.0] * 9), EarlyStopCB(divergence=0.1)])
    learn.dry_run()
    assert learn.stopped is None
