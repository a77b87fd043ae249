"""What people type who know fastai, Lightning or Keras: it works, or the error says what to write.

Each habit is code in a namespace that has `from minilearn.all import *`, loaders `dls`, tensors `x`
and `y`, a `model`, and a Learner `learn` that trains. Beside it is None where it works, else what
the first line of the error names.
"""

import copy
import pickle
import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import minilearn.all
from minilearn import Callback, Learner, TrainCB
from minilearn.base.foreign_names import HERE, HOOKS, HOOKS_HERE, NAMES
from minilearn.core.events import ACTIONS, EVENTS

# ruff: noqa: E501

FASTAI = {
    "Learner(dls, model, F.cross_entropy)": r"Learner\(model, dls, loss_func\), here Learner\(Seq",
    "Learner(dls, model, loss_func=F.cross_entropy, metrics=accuracy)": r"here Learner\(Sequential, D",
    "Learner(dls, nn.Linear)": r"here Learner\(Linear, DataLoaders\)",
    "Learner(model, dls, F.cross_entropy, optim.Adam)": "lr is Adam: write opt_func=Adam",
    "Learner(model, dls, F.cross_entropy, opt_func=optim.Adam, metrics=accuracy).fit(1, 1e-3)": None,
    "Learner(model, dls, nn.CrossEntropyLoss(), metrics=[accuracy, MulticlassAccuracy()]).fit(1)": None,
    "Learner(model, dls, F.cross_entropy, metrics=accuracy, cbs=ProgressCB).fit(1)": None,
    "Learner(model, dls, F.cross_entropy, metrics=accuracy, cbs=[EarlyStopCB('valid_loss')]).fit(1)": None,
    "Learner(model, dls, F.cross_entropy).fit(1)": None,
    "Learner(model, dls, F.cross_entropy).lr_find(num_it=50)": None,
    "Learner(model, dls).fit(1)": "loss_func=F.cross_entropy",
    "Learner(model, dls, F.cross_entropy, wd=0.1)": "optimizer",
    "Learner(model, dls, F.cross_entropy, moms=(0.9, 0.8, 0.9))": "betas",
    "Learner(model, dls, F.cross_entropy, splitter=None)": "optimizer",
    "learn.fit(2, 1e-3)": None,
    "learn.fit(1, 1e-3, [EMACB()])": None,
    "learn.fit(1, lr=slice(1e-5, 1e-3))": None,
    "learn.fit(1, wd=0.1)": "optimizer",
    "learn.fit(1, start_epoch=1)": "resume",
    "learn.fit_one_cycle(1)": None,
    "learn.fit_one_cycle(1, 1e-3)": None,
    "learn.fit_one_cycle(1, lr_max=slice(1e-5, 1e-3), cbs=EMACB())": None,
    "learn.fit_one_cycle(1, max_lr=1e-3)": "lr_max",
    "learn.fit_one_cycle(1, lr=1e-3)": "lr_max",
    "learn.fit_one_cycle(1, '1e-3')": "lr=1e-3",
    "learn.fit_one_cycle(1, valid=False, n_steps=None, valid_every=1, reset_opt=True)": None,
    "learn.fit_flat_cos(1, 1e-3, on_interrupt='stop')": None,
    "learn.fine_tune(1)": None,
    "learn.fine_tune(1, lr=1e-3)": "base_lr",
    "learn.fine_tune(1, '1e-3')": "lr=1e-3",
    "learn.freeze(); learn.unfreeze()": None,
    "learn.lr_find(num_it=50)": None,
    "learn.validate()": None,
    "learn.get_preds()": None,
    "learn.predict(x[0])": "learn.infer",
    "learn.recorder.plot_loss()": "learn.history",
    "learn.to_fp16()": "MixedPrecision",
    "learn.model_summary()": "learn.summary",
    "learn.summary()": None,
    "learn.no_bar()": "ProgressCB",
    "learn.add_cb(EMACB()); learn.remove_cb(EMACB)": None,
    "learn.add_cbs([EMACB()])": "add_cb",
    "learn.save('weights.safetensors'); learn.load('weights.safetensors')": None,
    "minilearn.SaveModelCallback()": "CheckpointCB",
    "minilearn.vision_learner(dls)": "Learner",
    "class A(Callback):\n    def after_pred(self): ...": "after_predict",
    "class A(Callback):\n    def before_train(self): ...": "before_epoch",
    "class A(Callback):\n    def begin_batch(self): ...": "before_batch",
    "class A(Callback):\n    def after_cancel_fit(self): ...": "cleanup_fit",
    "class A(Callback):\n    def befor_batch(self, learn): ...": "before_batch",
    "class A(Callback):\n    def afterbatch(self, learn): ...": "after_batch",
    "class A(Callback):\n    def before_iter(self, learn): ...": "before_batch",
    "class A(Callback):\n    def after_batch(self, learn): self.xb\nlearn.fit(1, cbs=A())": "learn.batch",
    "class A(Callback):\n    def after_batch(self, learn): self.learn\nlearn.fit(1, cbs=A())": "argument",
    "class A(Callback):\n    def after_loss(self, learn): self.pred\nlearn.fit(1, cbs=A())": "preds",
    "class A(Callback):\n    def after_fit(self, learn): self.recorder\nlearn.fit(1, cbs=A())": "history",
}
LIGHTNING = {
    "class A(Learner):\n    def training_step(self, batch, i): ...": "get_loss",
    "class A(Learner):\n    def configure_optimizers(self): ...": "opt_func",
    "class A(Callback):\n    def validation_step(self, batch, i): ...": "get_loss",
    "class A(Callback):\n    def on_train_epoch_end(self, trainer, module): ...": "after_epoch",
    "class A(Callback):\n    def on_train_batch_end(self, *args): ...": "after_batch",
    "class A(Callback):\n    def on_fit_start(self, *args): ...": "before_fit",
    "class A(Callback):\n    def on_validation_end(self, *args): ...": "after_epoch",
    "learn.on('on_train_batch_end', print)": "after_batch",
    "minilearn.Trainer(max_epochs=3)": "Learner",
    "learn.fit(max_epochs=3)": "n_epochs",
    "learn.fit(max_steps=3)": "n_steps",
    "learn.fit(1, ckpt_path='last')": "resume",
    "learn.fit(train_dataloaders=dls.train)": "dls",
    "learn.fit(1, val_check_interval=0.5)": "valid_every",
    "Learner(model, dls, accelerator='gpu')": "DeviceCB",
    "Learner(model, dls, precision=16)": "MixedPrecision",
    "Learner(model, dls, gradient_clip_val=1.0)": "ClipGradCB",
    "Learner(model, dls, accumulate_grad_batches=4)": "GradAccumCB",
    "Learner(model, dls, cbs=[DeviceCB('gpu')])": "cuda",
    "learn.test()": "validate",
    "learn.global_step": "steps_done",
    "learn.current_epoch": "learn.epoch",
    "learn.callback_metrics": "history",
    "learn.trainer": "learn",
    "learn.log_dict({})": r"learn\.log",
    "class A(Callback):\n    def after_batch(self, learn): learn.log(a=1)\nlearn.fit(1, cbs=A())": None,
    "learn.fit(1, cbs=minilearn.EarlyStopping())": "EarlyStopCB",
}
KERAS = {
    "learn.compile('adam')": "arguments of `Learner`",
    "learn.evaluate(dls.valid)": "validate",
    "learn.predict(dls.valid)": "get_preds",
    "learn.fit(x, y)": "from_arrays",
    "learn.fit(x, y, epochs=3)": "n_epochs",
    "learn.fit(epochs=3)": "n_epochs",
    "learn.fit(epoch=3)": "n_epochs",
    "learn.fit(1, batch_size=32)": "loaders",
    "learn.fit(1, validation_data=dls.valid)": "dls=",
    "learn.fit(1, callbacks=[])": "cbs",
    "learn.fit(1, verbose=0)": "ProgressCB",
    "learn.fit(1, '1e-3')": "lr=1e-3",
    "learn.fit('3')": "n_epochs is a whole number",
    "learn.fit(torch.tensor(1), torch.tensor(1e-3))": None,
    "learn.fit(1, EMACB())": "cbs=",
    "learn.save_model('a')": r"learn\.save",
    "learn.save_weights('a')": r"learn\.save",
    "learn.load_weights('a')": r"learn\.load",
    "learn.score(x, y)": "validate",
    "learn.partial_fit(x, y)": "fit",
    "learn.predict_proba(x)": "get_preds",
    "Learner(model, dls, 'mse')": "mse_loss",
    "Learner(model, dls, 'sparse_categorical_crossentropy')": "F.cross_entropy",
    "Learner(model, dls, loss='mse')": "loss_func",
    "Learner(model, dls, optimizer='adam')": "opt_func",
    "Learner(model, dls, learning_rate=0.1)": "lr",
    "Learner(model, dls, F.cross_entropy, lr='1e-3')": "lr=1e-3",
    "Learner(model, dls, F.cross_entropy, opt_func='adam', metrics=accuracy).fit(1)": None,
    "Learner(model, dls, F.cross_entropy, metrics='accuracy')": "'accuracy'",
    "Learner(model, dls, F.cross_entropy, metrics=['accuracy'])": "'accuracy'",
    "Learner(model, dls, F.cross_entropy, metrics=MulticlassAccuracy).fit(1)": None,
    "Learner(model, dls, F.cross_entropy, cbs='EarlyStop')": "EarlyStopCB",
    "Learner(model, dls, F.cross_entropy, cbs=['EarlyStopping'])": "EarlyStopCB",
    "learn.summary(); learn.history": None,
    "class A(Callback):\n    def on_epoch_end(self, epoch, logs=None): ...": "after_round",
    "class A(Callback):\n    def on_epoch_begin(self, epoch, logs=None): ...": "before_round",
    "class A(Callback):\n    def on_batch_end(self, batch, logs=None): ...": "after_batch",
}
PLAIN = {
    "Learner(nn.Linear, dls)": r"model is a class, Linear: write Linear\(",
    "Learner(model, dls, nn.CrossEntropyLoss)": r"loss_func is CrossEntropyLoss: write Cross\w+\(\)",
    "Learner(model, dls, opt_func=optim.SGD(model.parameters(), 0.1))": "opt=",
    "Learner(model, dls, opt=optim.SGD)": "opt_func=SGD",
    "Learner(model, dls, optim.Adam)": "opt_func=Adam",
    "Learner(model, (x, y))": r"DataLoaders\.from_arrays",
    "Learner(model, [x, y])": r"DataLoaders\.from_arrays",
    "Learner(model, (x.numpy(), y.numpy()))": r"DataLoaders\.from_arrays",
    "Learner(model, x)": r"DataLoaders\.from_arrays",
    "Learner(model, ds)": r"DataLoaders\.from_dsets",
    "Learner(model, (ds, ds))": r"DataLoaders\.from_dsets",
    "Learner(model, Dataset(x, y))": r"DataLoaders\.from_dsets",
    "Learner(model, fashion_mnist())": r"DataLoaders\.from_dd",
    "Learner(model, fashion_mnist()['train'])": r"DataLoaders\.from_dsets",
    "Learner(model, 'images')": "image_dls",
    "Learner(model, dls, 0.1)": "loss_func is .*function",
    "Learner(model, dls, lr=True)": "lr is .*number",
    "Learner(model, dls, cbs=3)": "callback",
    "Learner(model, dls, opt_func=0.1)": "opt_func is",
    "MetricsCB(MulticlassConfusionMatrix)": r"is a class: write MulticlassConfusionMatrix\(",
    "learn.on('iteration_completed', print)": "after_batch",
    "learn.fit(ds)": "dls=",
}
STUMBLES = {
    "learn.metrics = [minilearn.accuracy]; learn.fit(1)": r"Learner\(…, metrics=",
    "learn.loss_fn = nn.functional.mse_loss": "loss_func",
    "learn.callbacks = []": "cbs",
    "learn.optimizer = None": "opt_func",
    "learn.fit(1, float('nan'))": "lr is nan",
    "learn.fit_one_cycle(1, 0)": None,
    "learn.fit_one_cycle(1, 0.0, cbs=EMACB())": None,
    "Learner(model, ((b for b in dls.train), None), learn.loss_func, cbs=TrainCB()).fit(2)": "used up",
    "def batches():\n    yield x, y\nLearner(model, (batches, None))": "a list of batches",
    "DataLoaders.from_arrays(x, y, 16)": "write bs=16",
    "DataLoaders.from_arrays(x, y, batch_size=16)": "bs",
    "DataLoaders.from_arrays(x, y, bs='8')": "bs is",
    "DataLoaders.from_arrays(x, y).vocab": r"dls\.pipeline\.classes",
    "image_dls('images', batch_size=3)": "bs",
    "image_dls('images', valid_pct=0.1)": "valid",
    "image_dls('images', item_tfms=None)": "tfms",
    "image_dls('images', sise=3)": "did you mean 'size'",
    "MetricsCB(lambda p, t: 1.0)": r"metrics=\{'my_name'",
    "Learner(model, DataLoaders(test=dls.train), cbs=TrainCB()).fit(1)": "class folders",
    "dls.pipeline = Pipeline(classes=[*'abcd']); learn.fit(1)": "3 outputs, and the data have 4 classes",
    "dls.pipeline = Pipeline(classes=['a', 'b']); learn.infer(x[0])": "3 outputs, .* 2 classes",
    "dls.pipeline = Pipeline(classes=['a', 'b']); Interpretation.from_learner(learn)": "2 classes",
    "dls.pipeline = Pipeline(classes=[*'abc']); learn.fit(1); learn.infer(x[0])": None,
}
STUMBLES |= {
    "assert np.ones(3).sum() == 3": None,
    "Learner(model, dls, device='cuda')": r'`DeviceCB\("cuda"\)` among `cbs`$',
    "learn.to('cuda')": "DeviceCB",
    "learn.fit(1, device='cpu')": "DeviceCB",
    "Learner(model, dls, fp16=True)": "MixedPrecision",
    "learn.fit(1, gradient_accumulation_steps=2)": "GradAccumCB",
    "Learner(model, dls, compute_metrics=accuracy)": "metrics",
    "Learner(model, dls, max_epochs=3)": "of `fit`",
    "DataLoaders.from_dsets(ds, ds, batch_size=3)": "bs=64",
    "DataLoaders.from_dsets(ds, ds, shuffle=True)": "no argument 'shuffle'",
    "DataLoaders.from_dsets(ds, ds, data_collator=len)": "collate_fn",
    "DataLoaders.from_dsets(ds, ds, bs=8, collate_fn=default_collate, num_workers=0)": None,
    "DataLoaders.from_arrays(x, y, validation_split=0.2)": "valid_pct",
    "CheckpointCB('a', monitor='accuracy', save_best_only=True)": "CheckpointCB.* `keep=1`",
    "CheckpointCB('a').best_model_path": r"CheckpointCB\.best",
    "EarlyStopCB('accuracy', restore_best_weights=True)": "EarlyStopCB.* `restore_best=True`",
    "learn.get_preds(x.numpy())": r"DataLoader\(data, 64\)",
    "learn.on('EPOCH_COMPLETED', print)": "here it is `after_epoch`, or `after_round`$",
    "learn.on('iteration_started', print)": "here it is `before_batch`$",
    "Interpretation.from_learner(learn).plot_confusion_matrix()": "`plot_confusion`$",
    "dls.one_batch()": r"next\(iter\(dls\.train\)\)",
    "minilearn.Engine(print)": "Learner",
    "minilearn.Events.COMPLETED": r"learn\.on",
    "minilearn.TrainingArguments()": "`fit`",
    "class A(Callback):\n    def on_step(self, learn): ...": "here it is `after_step`$",
    "class A(Callback):\n    def setup(self, learn, stage): ...": "here it is `before_fit`$",
    "class A(Callback):\n    def teardown(self, *args): ...": "here it is `cleanup_fit`$",
    "class A(Learner):\n    def setup(self, stage): ...": "`before_fit`$",
    "try:\n  learn.load('.')\nexcept IsADirectoryError as e:\n  raise ValueError(e)": r"a folder.*CheckpointCB\.best",
    "Learner(model, dls, 'cross_entropy')": r"write F\.cross_entropy$",
    "Learner(model, dls, learn.loss_func, metrics='accuracy')": "without quotes, an object$",
    "assert 'adamw' in repr(Learner(model, dls, None, opt_func='adamw'))": None,
    "assert 'loss: None' in repr(Learner(model, dls, None))": None,
    "try:\n  learn.fit(1); learn.history['val_loss']\nexcept KeyError as e:\n  raise ValueError(e)": (
        "did you mean 'valid_loss'"
    ),
}
HABITS = {
    "stumbles": STUMBLES,
    "fastai": FASTAI,
    "Lightning": LIGHTNING,
    "Keras": KERAS,
    "torch": PLAIN,
}


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = x[:, :3].argmax(1)
    ds = TensorDataset(x, y)
    names = {name: getattr(minilearn.all, name) for name in minilearn.all.__all__}
    dls = minilearn.DataLoaders(DataLoader(ds, 16), DataLoader(ds, 32))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    learn = Learner(model, dls, nn.functional.cross_entropy, metrics=minilearn.accuracy)
    names |= {
        "minilearn": minilearn,
        "nn": nn,
        "x": x,
        "y": y,
        "ds": ds,
        "dls": dls,
        "model": model,
    }
    return names | {"learn": learn}


def test_there_are_as_many_habits_as_promised():
    assert len(FASTAI) >= 30 and len(LIGHTNING) >= 15 and len(KERAS) >= 15


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "code, expected",
    [
        pytest.param(code, expected, id=f"{source}: {code}")
        for source, habits in HABITS.items()
        for code, expected in habits.items()
    ],
)
def test_a_habit_works_or_its_first_line_says_the_name(code, expected, names):
    if expected is None:
        exec(code, names)
        return
    with pytest.raises((TypeError, AttributeError, ValueError)) as raised:
        exec(code, names)
    first = str(raised.value).partition("\n")[0]
    assert re.search(expected, first), first


# ---- the table of names ----


def test_a_name_that_several_frameworks_have_is_the_same_here():
    seen = {}
    for table in (HOOKS, NAMES):
        for section in table.values():
            for names, here in section.items():
                for name in names.split(", "):
                    assert seen.setdefault(name, here) == here, name


def test_no_name_from_elsewhere_is_one_of_ours():
    learn = Learner(None, None)
    assert {name for name in HERE if hasattr(Callback, name)} == set()
    assert {name for name in HOOKS_HERE if hasattr(learn, name)} == set()
    assert HERE.keys().isdisjoint(EVENTS) and HERE.keys() & set(ACTIONS) == {"predict"}
    assert {name for name in HERE if hasattr(learn, name)} <= OURS


# an action, which complains about arguments only; keywords; what fastai's callbacks have themselves
OURS = {*"predict loss epoch lr model dls opt loss_func preds training".split()}


def test_what_the_table_recommends_exists():
    learn = Learner(None, None, cbs=[TrainCB()])
    for here in HERE.values():
        for code in re.findall(r"`([^`]+)`", here):
            name = re.match(r"\W*(?:learn\.)?(\w+)", code)[1]
            known = [*minilearn.__all__, *minilearn.all.__all__, *EVENTS, *ACTIONS, *EXTRA]
            assert name in known or hasattr(learn, name) or hasattr(Callback, name), code


# torch's, Python's, and arguments
EXTRA = """raise nn CosineAnnealingWarmRestarts partial learn n_epochs n_steps valid_every resume opt_func
    loss_func lr cbs dls opt lr_max base_lr backward k
    collate_fn metrics monitor keep mode restore_best next plot_confusion""".split()


# ---- nothing else changes ----


def test_names_from_elsewhere_stay_unknown_to_hasattr_copies_pickles_and_completion(names):
    learn = names["learn"]
    for thing in (learn, minilearn.EMACB()):
        assert not any(hasattr(thing, name) for name in HERE.keys() - OURS)
        assert getattr(thing, "recorder", 3) == 3
        assert type(copy.copy(thing)) is type(copy.deepcopy(thing)) is type(thing)
        assert not {"recorder", "to_fp16"} & set(dir(thing))
    again = pickle.loads(pickle.dumps(learn))
    assert repr(again).splitlines()[0] == repr(learn).splitlines()[0]
    again.fit(1)


def test_other_missing_names_have_the_message_of_python(names):
    with pytest.raises(AttributeError, match=r"^'Learner' object has no attribute 'modell'$") as e:
        names["learn"].modell  # noqa: B018
    assert e.value.name == "modell" and e.value.obj is names["learn"]


def test_the_error_of_a_property_is_its_own():
    class Mine(Callback):
        @property
        def recorder(self):
            return self.missing

    with pytest.raises(AttributeError, match="^'Mine' object has no attribute 'missing'$"):
        Mine().recorder  # noqa: B018


def test_helpers_bases_and_mixins_may_have_other_names():
    class Base(Callback):
        def helper(self): ...

        def _after_batch(self): ...

        def batch_is_done(self): ...

    class Mixin:
        def after_fit(self, learn): ...

    class Both(Mixin, Base): ...

    class Wrong:
        def on_epoch_end(self): ...

    with pytest.raises(
        TypeError, match="Mixed.on_epoch_end is not an event: here it is `after_rou"
    ):

        class Mixed(Wrong, Callback): ...


def test_a_callback_that_nobody_calls_is_a_warning_when_a_fit_starts(names):
    class Idle(Callback):
        def at_batch(self, learn): ...

    idle = Idle()
    with pytest.warns(UserWarning, match=r"Idle\(\) does nothing: .*\(it has at_batch\)"):
        names["learn"].fit(1, cbs=idle)
    idle.after_batch = lambda learn: None  # patched in later
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        names["learn"].fit(1, cbs=idle)
        Idle.after_fit = lambda self, learn: None
        names["learn"].fit(1, cbs=Idle())


# ---- the loss that nobody gave ----


def shapes(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    "preds, targets, suggested",
    [
        (shapes(8, 3), shapes(8, dtype=torch.int64), "F.cross_entropy."),
        (shapes(8, 3, 5, 5), shapes(8, 5, 5, dtype=torch.uint8), "F.cross_entropy."),
        (
            shapes(8, 3),
            shapes(8, 1, dtype=torch.int64),
            r"F.cross_entropy, with targets of .*\(B,\)",
        ),
        (shapes(8, 1), shapes(8, dtype=torch.int64), "F.binary_cross_entropy_with_logits"),
        (shapes(8, 4), shapes(8, 4, dtype=torch.bool), "F.binary_cross_entropy_with_logits"),
        (shapes(8, 1), shapes(8), r"F.mse_loss, with targets of the predictions' shape, \(8, 1\)"),
        (shapes(8, 3), shapes(8), "F.cross_entropy, with targets of type int64"),
    ],
)
@pytest.mark.parametrize("kind", [minilearn.TrainLearner, Learner])
def test_a_forgotten_loss_is_an_error_that_names_the_loss_of_the_data(
    kind, preds, targets, suggested
):
    class Fixed(nn.Linear):
        def forward(self, x):
            return preds + 0 * self.weight.sum()

    learn = kind(Fixed(1, 1), ([(torch.ones(8), targets)],))
    with pytest.raises(ValueError, match=f"^no loss_func was given.* write loss_func={suggested}"):
        learn.fit(1)


def test_a_loss_that_fits_or_was_given_is_used_without_a_question():
    data = ([(torch.ones(8, 1), torch.ones(8, 1))],)
    ours, theirs = nn.Linear(1, 1), nn.Linear(1, 1)
    theirs.load_state_dict(ours.state_dict())
    Learner(ours, data, cbs=TrainCB()).fit(1)
    Learner(theirs, data, nn.functional.mse_loss, cbs=TrainCB()).fit(1)
    assert torch.equal(ours.weight, theirs.weight)
    whole = ([(torch.ones(8, 1), torch.ones(8, 1, dtype=torch.int64))],)
    Learner(ours, whole, nn.functional.mse_loss, cbs=TrainCB()).fit(1)
    learn = Learner(ours, whole, cbs=TrainCB())
    learn.loss_func = nn.functional.mse_loss
    learn.fit(1)


def test_a_learner_that_computes_no_loss_needs_none(names):
    class Own(TrainCB):
        def get_loss(self, learn):
            learn.loss = learn.loss_func(learn.preds.argmax(1).float(), learn.batch[1]).mean()

    learn = Learner(names["model"], names["dls"], cbs=[TrainCB()])
    learn.summary()
    learn.get_preds()
    Learner(names["model"], names["dls"], cbs=[Own()]).fit(1, train=False)


def test_a_copied_or_pickled_learner_still_knows_that_no_loss_was_given(names):
    learn = Learner(names["model"], names["dls"], cbs=[TrainCB()])
    assert "loss: mse_loss\n" in repr(learn)
    for same in (copy.deepcopy(learn), pickle.loads(pickle.dumps(learn))):
        with pytest.raises(ValueError, match="no loss_func was given"):
            same.fit(1)
