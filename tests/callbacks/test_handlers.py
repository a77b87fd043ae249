"""Plain functions that listen to events."""

from typing import get_args, get_type_hints

import pytest
from toys import POINTS, batches, toy_learner

from minilearn.callbacks.handlers import LambdaCB, on
from minilearn.callbacks.training import TrainCB
from minilearn.core.callback import Callback
from minilearn.core.events import ACTIONS, CancelEpochException, CancelStepException, Event, Order
from minilearn.learner import Learner


def learner(n_train=7, n_valid=2, cbs=(), **kwargs):
    return toy_learner(cbs, (batches(n_train), batches(n_valid)), **kwargs)


@pytest.mark.parametrize("event", POINTS)
def test_a_function_gets_every_event_as_often_as_it_fires(event):
    heard, by_method = [], []
    method = {event: lambda self, learn: by_method.append(learn.iter)}
    learn = learner(cbs=[type("Listens", (Callback,), method)()])
    learn.on(event, lambda learn: heard.append(learn.iter))
    learn.fit(2)
    assert heard == by_method != []


def test_every_counts_batches_from_the_start_of_each_epoch():
    learn, heard = learner(), []
    learn.on("after_batch", lambda learn: heard.append((learn.training, learn.iter)), every=3)
    learn.fit(2)
    assert heard == [(True, 2), (True, 5)] * 2


@pytest.mark.parametrize("event", ["before_step", "after_step", "cleanup_step"])
def test_every_counts_updates_over_the_whole_fit(event):
    learn, heard = learner(), []
    learn.on(event, lambda learn: heard.append(learn.iter), every=5)
    learn.fit(2)
    assert heard == [4, 2]  # the updates 5 and 10 of 14


def test_every_does_not_count_updates_that_were_not_made():
    learn, heard = learner(), []

    @learn.on("before_step", when=lambda learn: learn.iter % 2 == 0)
    def skip(learn):
        raise CancelStepException

    learn.on("after_step", lambda learn: heard.append(learn.iter), every=2)
    learn.fit(1)
    assert heard == [3]  # updates are made in the batches 1, 3 and 5


@pytest.mark.parametrize("event", ["before_round", "after_round", "cleanup_round"])
def test_every_counts_epochs(event):
    learn, heard = learner(), []
    learn.on(event, lambda learn: heard.append(learn.epoch), every=2)
    learn.fit(5)
    assert heard == [1, 3]


def batches_heard(learn, *events, **options):
    heard = []
    learn.on(
        *events, lambda learn: heard.append((learn.epoch, learn.training, learn.iter)), **options
    )
    learn.fit(2)
    return heard


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize(("after", "before"), [(None, 3), (2, None), (1, 6), (5, 4)])
def test_before_and_after_bound_the_number(every, after, before):
    """ignite's events: `after < number < before`, and the number is a multiple of `every`."""
    options = dict(every=every, after=after, before=before)
    heard = batches_heard(learner(n_valid=1), "after_batch", training=True, **options)
    low, high = after or 0, before or 99
    numbers = [n for n in range(1, 8) if low < n < high and n % every == 0]
    assert heard == [(epoch, True, n - 1) for epoch in range(2) for n in numbers]


def test_bounds_count_updates_and_epochs_over_the_fit():
    assert [x[2] for x in batches_heard(learner(), "after_step", after=6, before=9)] == [6, 0]
    assert [x[0] for x in batches_heard(learner(), "after_round", after=1)] == [1]


@pytest.mark.parametrize("training", [True, False])
def test_training_chooses_batches(training):
    heard = batches_heard(learner(3, 2), "after_batch", training=training)
    assert heard == [(e, training, i) for e in range(2) for i in range(3 if training else 2)]


def test_several_events_in_one_call_also_as_a_decorator():
    learn, heard = learner(2, 1), []

    @learn.on("before_fit", "after_epoch", "after_fit")
    def note(learn):
        heard.append(learn.training)

    learn.fit(1)
    assert heard == [False, True, False, False]
    assert repr(note).startswith("on('before_fit', 'after_epoch', 'after_fit', ")
    note.remove()
    learn.fit(1)
    assert len(heard) == 4


def test_once_may_be_a_number_of_calls_over_all_events():
    assert len(batches_heard(learner(), "after_batch", once=3)) == 3
    assert len(batches_heard(learner(), "before_batch", "after_batch", once=5, every=2)) == 5


def test_further_arguments_and_no_argument():
    learn, heard = learner(1, 1), []
    learn.on("after_fit", lambda learn, *rest: heard.append(rest), args=(1, "two"))
    learn.on("after_fit", lambda: heard.append("none"))
    learn.on("after_fit", fn=heard.append, once=2)
    learn.fit(1)
    assert heard == [(1, "two"), "none", learn]


def test_the_phase_is_that_of_the_batch_whenever_the_function_was_added():
    learn, heard = learner(), []

    @learn.on("after_batch", when=lambda learn: learn.iter == 3, once=True)
    def add(learn):
        learn.on("after_batch", lambda learn: heard.append(learn.iter), every=3, training=True)

    learn.fit(1)
    assert heard == [5]


def test_the_type_of_events_names_them_all():
    assert set(get_args(Event)) == set(POINTS)
    hint = get_type_hints(on)["events"]
    assert set(get_args(get_args(hint)[0])) == set(POINTS)


def test_a_condition_chooses():
    learn, heard = learner(), []
    learn.on("after_epoch", lambda learn: heard.append(learn.training), when=lambda x: x.training)
    learn.fit(2)
    assert heard == [True, True]


def test_once_is_once():
    learn, heard = learner(), []
    learn.on("after_batch", lambda learn: heard.append(learn.iter), once=True, every=2)
    learn.fit(2)
    assert heard == [1]
    assert len(learn.cbs) == 1


def test_once_is_once_where_the_function_cancels():
    learn, seen = learner(), []

    @learn.on("after_batch", once=True)
    def stop(learn):
        raise CancelEpochException

    learn.on("after_batch", lambda learn: seen.append(learn.iter), order=Order.METRICS)
    learn.fit(1, valid=False)
    assert seen == [0]
    learn.fit(1, valid=False)
    assert seen == [0, *range(7)]


def test_removing_takes_effect_at_once():
    learn, heard = learner(), []
    handle = learn.on("after_batch", lambda learn: heard.append(learn.iter))
    learn.on("after_batch", lambda learn: learn.iter == 2 and handle.remove(), order=Order.METRICS)
    learn.fit(1)
    assert heard == [0, 1]
    handle.remove()
    assert handle not in learn.cbs


def test_a_with_statement_takes_the_function_off():
    learn, heard = learner(), []
    with learn.on("after_fit", lambda learn: heard.append(1)) as handle:
        assert handle in learn.cbs
        learn.fit(1)
    learn.fit(1)
    assert heard == [1]


def test_a_decorated_function_stays_callable_and_keeps_its_name():
    learn, heard = learner(), []

    @learn.on("after_fit")
    def note(learn):
        """Notes."""
        heard.append("noted")
        return 5

    assert note(learn) == 5
    assert (note.__name__, note.__doc__) == ("note", "Notes.")
    learn.fit(1)
    assert heard == ["noted"] * 2
    note.remove()
    learn.fit(1)
    assert heard == ["noted"] * 2


@pytest.mark.parametrize("event", ["before_fit", "before_batch", "cleanup_fit", "cleanup_batch"])
def test_adding_and_removing_in_mid_fit_do_not_call_the_function(event):
    learn, heard = learner(), []

    @learn.on("after_loss", once=True)
    def add_and_remove(learn):
        learn.on(event, lambda learn: heard.append(event)).remove()

    learn.fit(1)
    assert heard == []


def test_a_function_added_in_mid_fit_gets_what_comes():
    learn, heard = learner(), []

    @learn.on("after_batch", when=lambda learn: learn.iter == 4, once=True)
    def add(learn):
        learn.on("before_batch", lambda learn: heard.append(learn.iter))

    learn.fit(1, valid=False)
    assert heard == [5, 6]


def test_the_order_is_kept():
    learn, heard = learner(1, 1), []
    learn.on("after_fit", lambda learn: heard.append("default"))
    learn.on("after_fit", lambda learn: heard.append("metrics"), order=Order.METRICS)
    learn.fit(1)
    assert heard == ["metrics", "default"]


def test_a_condition_that_was_met_in_a_nested_run_does_not_count_for_once():
    learn, depths = learner(), []
    learn.on("before_batch", lambda learn: depths.append(learn.depth), once=True)
    learn.validate()
    assert learn.depth == 0 and depths == [1]
    learn.fit(1)
    assert depths == [1, 0]


def test_an_error_names_the_function_and_the_place():
    learn = learner()

    @learn.on("after_batch", every=2)
    def divide(learn):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as e:
        learn.fit(1)
    assert len(e.value.__notes__) == 1
    assert "divide, on after_batch, epoch 0, batch 1 (training)" in e.value.__notes__[0]


def test_mistakes_are_found_at_once():
    learn = learner()
    with pytest.raises(TypeError, match="did you mean 'after_batch'"):
        learn.on("after_bacth", print)
    with pytest.raises(ValueError, match="every is a whole number"):
        learn.on("after_batch", print, every=0)
    for options in ({"every": 2}, {"before": 3}, {"after": 3}):
        with pytest.raises(ValueError, match="belongs to none"):
            learn.on("after_step", "after_fit", print, **options)
    with pytest.raises(ValueError, match="once is a number of calls"):
        learn.on("after_fit", print, once=0)
    with pytest.raises(ValueError, match="training= is for what happens in an epoch"):
        learn.on("after_round", print, training=True)
    for wrong in ((), (print,), ("after_fit", print, print)):
        with pytest.raises(TypeError, match="takes events, then one function"):
            learn.on(*wrong)
    with pytest.raises(TypeError, match="did you mean 'after_fit'"):
        LambdaCB(after_fitt=print)
    assert len(learn.cbs) == 1


def test_a_callback_of_functions_listens_and_answers():
    heard = []

    def half(learn):
        learn.preds = learn.model(learn.batch[0]) / 2

    cb = LambdaCB(predict=half, after_predict=lambda learn: heard.append(learn.preds), order=5)
    learn = Learner(lambda x: x[:, :1], (batches(1), batches(1)), cbs=[TrainCB(), cb])
    learn.fit(1, train=False)
    assert (heard[0] == learn.dls[1][0][0][:, :1] / 2).all()
    assert learn.owner("predict") is cb and cb.order == 5
    assert "predict" in repr(cb) and "predict" in ACTIONS
