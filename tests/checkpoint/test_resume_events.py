"""What a resume fires again, and who counts rightly all the same."""

from collections import Counter

import pytest
import torch
from toys import At, toy_dls, toy_learner

from minilearn import Callback, CheckpointCB, DataLoaders, LoggerCB, MetricsCB
from minilearn.checkpoint import fit_state as resume_module

COUNTED = ("before_round", "before_epoch", "after_step", "after_epoch", "after_round")


class Counts(Callback):
    """Counts events over a resume."""

    def __init__(self):
        self.seen = Counter()

    def state_dict(self):
        return {"seen": dict(self.seen)}

    def load_state_dict(self, state):
        self.seen = Counter(state["seen"])


for event in COUNTED:
    setattr(Counts, event, lambda self, learn, event=event: self.seen.update([event]))


def check_counts(folder, **amount):
    """Resume from each checkpoint of a run; whoever counts has counted what the whole run has."""
    whole = Counts()
    saver = CheckpointCB(folder, every=(1, "step"), keep=None, background=False)
    toy_learner([whole, MetricsCB(quiet=True), saver], toy_dls(n_train=4)).fit(3, **amount)
    files = sorted(folder.glob("*.ckpt"))
    positions = set()
    for file in files:
        counts = Counts()
        learn = toy_learner([counts, MetricsCB(quiet=True)], toy_dls(n_train=4))
        learn.fit(3, resume=file, **amount)
        positions.add(torch.load(file, weights_only=True)["position"])
        assert counts.seen == whole.seen, file.name
    assert positions >= {"training", "round"}


@pytest.mark.parametrize("every", [1, 2, (3, "step")], ids=str)
def test_states_of_callbacks_count_no_event_of_a_resumed_pass_twice(every, tmp_path):
    check_counts(tmp_path, valid_every=every)


def test_that_check_sees_states_that_are_loaded_before_the_epoch_only(tmp_path, monkeypatch):
    monkeypatch.setattr(resume_module, "load_callbacks", once(resume_module.load_callbacks))
    with pytest.raises(AssertionError):
        check_counts(tmp_path)


def once(load):
    """Broken: states are put back when the fit begins, and not again in the epoch."""
    return lambda learn, state: [] if "epoch" in learn.levels else load(learn, state)


class Lowers(Callback):
    """Trains the last layer first, then all at a lower rate; and shrinks a weight in each epoch."""

    def before_fit(self, learn):
        learn.freeze_to(-1)

    def before_round(self, learn):
        learn.opt.param_groups[0]["weight_decay"] += 0.01

    def before_epoch(self, learn):
        if not learn.training:
            return
        with torch.no_grad():
            learn.model[-1].weight.mul_(0.9)
        if learn.epoch == 1:
            learn.unfreeze()
            for group in learn.opt.param_groups:
                group["lr"] /= 10


def check_changes(folder, lr=None, **amount):
    """Resume from each checkpoint of a run; changes of callbacks are made once."""

    def learner(*cbs):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        dls = toy_dls(n_train=4, n_valid=2)
        cbs = [Lowers(), MetricsCB(quiet=True), *cbs]
        return toy_learner(cbs, dls, model, opt_func="adamw", lr=0.01)

    def in_validation(learn):
        return not learn.training and learn.iter == 1

    def save(learn):
        learn.save_checkpoint(folder / f"valid{learn.epoch}.ckpt")

    saver = CheckpointCB(folder, every=(1, "step"), keep=None, background=False)
    whole = learner(saver, At("after_batch", save, when=in_validation))
    whole.fit(3, lr, **amount)
    positions = set()
    for file in sorted(folder.glob("*.ckpt")):
        learn = learner()
        learn.fit(3, lr, resume=file, **amount)
        positions.add(torch.load(file, weights_only=True)["position"])
        for a, b in zip(whole.model.parameters(), learn.model.parameters(), strict=True):
            assert torch.equal(a, b), file.name
        for a, b in zip(whole.opt.param_groups, learn.opt.param_groups, strict=True):
            assert (a["lr"], a["weight_decay"]) == (b["lr"], b["weight_decay"]), file.name
    assert positions == {"training", "validation", "round"}


@pytest.mark.filterwarnings("ignore:this is not the fit that was saved")
@pytest.mark.parametrize("lr", [None, 0.02])
@pytest.mark.parametrize("every", [1, (3, "step")], ids=str)
def test_rates_and_weights_that_a_callback_changes_in_a_resumed_epoch_change_once(
    every, lr, tmp_path
):
    check_changes(tmp_path, lr, valid_every=every)


@pytest.mark.filterwarnings("ignore:this is not the fit that was saved")
def test_that_check_sees_an_optimizer_that_is_loaded_before_the_epoch_only(tmp_path, monkeypatch):
    load = resume_module.load_trained

    def once(learn, *args, **kwargs):
        return [] if "epoch" in learn.levels else load(learn, *args, **kwargs)

    monkeypatch.setattr(resume_module, "load_trained", once)
    with pytest.raises(AssertionError):
        check_changes(tmp_path)


class Sum:
    """A metric that notices a batch that counts twice."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.sums = []

    def update(self, preds, targs):
        self.sums.append(float((preds - targs).abs().sum()))

    def compute(self):
        return sum(self.sums)

    def state_dict(self):
        return {"sums": list(self.sums)}

    def load_state_dict(self, state):
        self.sums = list(state["sums"])


def distance(preds, targs):
    return (preds - targs).abs().mean()


def measured(cbs=()):
    return toy_learner(
        [MetricsCB(Sum=Sum(), distance=distance, quiet=True), *cbs], toy_dls(n_valid=2)
    )


def check_validation(event, batch, path):
    """Save in the middle of a validation; its resume gives the row of the whole run."""

    def in_validation(learn):
        return not learn.training and learn.epoch == 1 and learn.iter == batch

    saves = At(event, lambda learn: learn.save_checkpoint(path), when=in_validation)
    whole, again = measured([saves]), measured()
    whole.fit(2)
    again.fit(2, resume=path)
    for row in (*whole.history, *again.history):
        del row["time"]
    assert again.history == whole.history
    assert again.metrics.rows == whole.metrics.rows


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("event", ["before_batch", "after_batch", "cleanup_batch"])
def test_a_validation_is_measured_from_its_start_wherever_in_it_was_saved(event, batch, tmp_path):
    check_validation(event, batch, tmp_path / "x.ckpt")


def test_that_check_sees_batches_that_are_measured_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(resume_module, "begun_anew", lambda state: state)
    with pytest.raises(AssertionError):
        check_validation("after_batch", 0, tmp_path / "x.ckpt")


# ---- what learn.log is given ----


class Kept(LoggerCB):
    """Keeps records as a file does that is cut on a resume, and media by what they are."""

    files = {}  # records and media by name, over resumes

    def __init__(self, name):
        super().__init__()
        self.name = name

    def _open(self):
        self.kept, self.media = self.files.setdefault(self.name, ([], {}))
        del self.kept[self.written :]

    def _write(self, record):
        self.kept.append({name: value for name, value in record.items() if name != "time"})

    def _media(self, name, value, step):
        self.media[name, step, *value.tolist()] = True


class Logs(Callback):
    """Logs a number at every event of a fit; in a validation also a tensor."""


def log_at(event):
    def log(self, learn):
        at = 0 if event == "before_epoch" else learn.iter  # there it is the epoch before's
        seen = 100 * learn.epoch + 10 * learn.steps_done + at
        learn.log(**{event: float(seen)})
        if event == "after_batch" and not learn.training:
            learn.log(picture=torch.tensor([seen, learn.iter]))

    return log


for event in ("before_epoch", "before_batch", "after_loss", "after_batch", "after_epoch"):
    setattr(Logs, event, log_at(event))


def check_logged(event, batch, name, path):
    """Save in a validation, the one called `name`; the resume gives the rows of the whole run."""

    def in_validation(learn):
        here = not learn.training and learn.valid_name == name
        return here and learn.epoch == 1 and (event == "after_epoch" or learn.iter == batch)

    def logging(cbs=()):
        train, valid = toy_dls(n_valid=2)
        dls = DataLoaders(train, valid, more=toy_dls(n_valid=2)[1])
        cbs = [Logs(), MetricsCB(quiet=True), Kept(path.name), *cbs]
        return toy_learner(cbs, dls)

    Kept.files.clear()
    saves = At(event, lambda learn: learn.save_checkpoint(path), when=in_validation)
    logging([saves]).fit(3)
    whole = Kept.files.pop(path.name)
    stops = At(event, KeyboardInterrupt(), when=in_validation)
    with pytest.raises(KeyboardInterrupt):
        logging([saves, stops]).fit(3)
    logging().fit(3, resume=path)
    assert Kept.files[path.name] == whole


@pytest.mark.parametrize("name", [None, "more"])
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("event", ["before_batch", "after_batch", "cleanup_batch", "after_epoch"])
def test_what_a_validation_logs_counts_once_wherever_in_it_was_saved(event, batch, name, tmp_path):
    check_logged(event, batch, name, tmp_path / "x.ckpt")


def test_that_check_sees_values_that_are_logged_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(resume_module, "begun_anew", lambda state: state)
    with pytest.raises(AssertionError):
        check_logged("after_batch", 0, None, tmp_path / "x.ckpt")
