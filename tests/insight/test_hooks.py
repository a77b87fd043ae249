"""Hooks fire, measure what they are given, and are gone afterwards in every case."""

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from minilearn import ActivationStats
from minilearn.insight import hooks, summary
from minilearn.insight.hooks import Hook, Hooks, first_float
from tests.toys import toy_learner


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def n_hooks(m):
    return sum(len(o._forward_hooks) + len(o._backward_hooks) for o in m.modules())


def append_mean(hook, mod, inp, outp):
    if not hasattr(hook, "stats"):
        hook.stats = []
    hook.stats.append(outp.mean().item())


def nothing(*args):
    pass


def test_hook_gets_itself_the_module_and_what_went_in_and_out():
    m, x, seen = model(), torch.randn(5, 3), []
    with Hook(m[0], lambda *args: seen.append(args)) as hook:
        m(x)
    (got, mod, inp, outp), *more = seen
    assert got is hook and mod is m[0] and inp[0] is x and not more
    assert torch.equal(outp, m[0](x))


def test_hook_keeps_what_it_recorded_after_it_is_removed():
    m, x = model(), torch.randn(5, 3)
    hook = Hook(m[0], append_mean)
    m(x)
    hook.remove()
    hook.remove()
    m(x)
    assert hook.stats == [m[0](x).mean().item()]


def test_hook_observes_and_does_not_replace_the_output():
    m, x = model(), torch.randn(5, 3)
    expected = m(x)
    with Hook(m[0], lambda *args: torch.zeros(5, 4)):
        assert torch.equal(m(x), expected)


def test_backward_hook_gets_the_gradient_of_the_output():
    m, x = model(), torch.randn(5, 3)
    with Hook(m[2], lambda h, mod, gin, gout: setattr(h, "grad", gout[0]), backward=True) as hook:
        m(x).sum().backward()
    assert torch.equal(hook.grad, torch.ones(5, 2))
    assert n_hooks(m) == 0


def test_hook_on_a_module_that_runs_twice_fires_twice():
    act, seen = nn.ReLU(), []
    m = nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3), act)
    with Hooks(m, lambda h, mod, inp, outp: seen.append(mod)):
        m(torch.randn(2, 3))
    assert seen.count(act) == 2


def test_hook_that_is_deleted_leaves_the_module():
    m = model()
    hook = Hook(m[0], append_mean)
    assert n_hooks(m) == 1
    del hook
    assert n_hooks(m) == 0


def test_hook_is_gone_after_an_exception_in_the_model_and_in_the_function():
    m = model()
    with pytest.raises(RuntimeError), Hooks(m, nothing):
        m(torch.randn(5, 99))
    with pytest.raises(ZeroDivisionError), Hooks(m, lambda *args: 1 / 0):
        m(torch.randn(5, 3))
    assert n_hooks(m) == 0


def test_module_does_not_keep_what_the_function_holds_alive():
    class Learner:
        pass

    m, learn = model(), Learner()
    alive = weakref.ref(learn)
    hook = Hook(m[0], lambda *args, learn=learn: None)
    hook.remove()
    del learn
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_model_can_be_copied_and_pickled_while_hooked_and_the_copy_is_silent(copied):
    m, seen = model(), []
    with Hooks(m, lambda *args: seen.append(args)):
        twin = copied(m)
        twin(torch.randn(5, 3))
        assert not seen
    assert torch.equal(twin[0].weight, m[0].weight)


def test_hook_refuses_what_cannot_be_hooked_and_leaves_no_trace():
    with pytest.raises(TypeError, match="needs an nn.Module, got str"):
        Hook("fc", nothing)
    gc.collect()  # __del__ of the unfinished hooks must not complain


def test_compiled_models_are_refused_with_a_word():
    m = model()
    for compiled in torch.compile(m, backend="eager"), copy.deepcopy(m):
        compiled.compile(backend="eager")
        for make in Hook, Hooks:
            with pytest.raises(RuntimeError, match="is compiled"):
                make(compiled, nothing)


def test_hooks_take_a_module_for_its_children_or_any_modules():
    m = model()
    for ms, n in (m, 3), (m[:2].children(), 2), ([m[0]], 1), (m[0], 1), (iter(m), 3), ([], 0):
        with Hooks(ms, nothing) as hooks:
            assert len(hooks) == n_hooks(m) == n
        assert n_hooks(m) == 0


def test_hooks_of_a_refused_list_are_all_removed():
    m = model()
    with pytest.raises(TypeError) as caught:
        Hooks([m[0], m[1], "fc"], nothing)
    assert n_hooks(m) == 0, "though the traceback is still alive"
    assert caught.value is not None


def test_deleting_from_hooks_removes_those():
    m = model()
    hooks = Hooks(m, nothing)
    first, second, third = hooks
    del hooks[0]
    assert hooks == [second, third] and not m[0]._forward_hooks and n_hooks(m) == 2
    del hooks[:]
    assert n_hooks(m) == 0


def test_hooks_that_are_dropped_leave_the_model():
    m = model()
    hooks = Hooks(m, nothing)
    assert n_hooks(m) == 3
    del hooks
    assert n_hooks(m) == 0


# first_float and the cases

T = torch.tensor([1.0])
I = torch.tensor([1])  # noqa: E741


@dataclass
class Output:
    ids: torch.Tensor
    logits: torch.Tensor


@pytest.mark.parametrize(
    "outp",
    [T, (T,), [I, (None, {"a": I, "b": T})], OrderedDict(x=I, y=T), (I, Output(I, T))],
)
def test_first_float_finds_the_tensor_at_any_depth(outp):
    assert first_float(outp) is T


def test_first_float_goes_depth_first():
    assert first_float([(I, [T]), torch.zeros(3)]) is T


@pytest.mark.parametrize("outp", [None, I, (), {"a": "text"}, [I, 3.0], Output])
def test_first_float_is_none_where_there_is_none(outp):
    assert first_float(outp) is None


class Nothing(nn.Module):
    def forward(self, x):
        self.seen = x


class AsDict(nn.Module):
    def forward(self, x):
        return {"ids": I, "out": x * 2}


class Mixed(nn.Module):
    """An LSTM with nested tuples, a layer that returns None and one that returns a dict."""

    def __init__(self):
        super().__init__()
        self.lstm, self.none, self.dict = nn.LSTM(3, 4), Nothing(), AsDict()

    def forward(self, x):
        y, _ = self.lstm(x)
        self.none(y)
        return self.dict(y)["out"]


def record_first(hook, mod, inp, outp):
    if (acts := first_float(outp)) is not None:
        append_mean(hook, mod, inp, acts)


def record_all(hook, mod, inp, outp):  # what case C117 is about
    append_mean(hook, mod, inp, outp)


def check_any_output_is_measured(record):
    m, x = Mixed(), torch.randn(5, 2, 3)
    with Hooks(m, record) as hooks:
        out = m(x)
    lstm, none, as_dict = hooks
    assert lstm.stats == [m.lstm(x)[0].mean().item()]
    assert as_dict.stats == [out.mean().item()]
    assert not hasattr(none, "stats")


@pytest.mark.case("C117")
def test_outputs_of_any_structure_are_measured_by_their_first_floating_tensor():
    check_any_output_is_measured(record_first)


def test_check_of_c117_fails_for_a_hook_that_expects_a_tensor():
    with pytest.raises(AttributeError):
        check_any_output_is_measured(record_all)


class LeakyHook:
    """The hook of case C118: the module holds it, and nobody takes it off."""

    def __init__(self, m, f):
        m.register_forward_hook(lambda *args: f(self, *args))

    def remove(self):
        pass


def run_hooked(m, hook_class, error, steps=5):
    hooks = [hook_class(layer, append_mean) for layer in m]
    try:
        for i in range(steps):
            m(torch.randn(2, 3))
            if error is not None and i == 2:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return hooks


def check_no_hook_stays(hook_class, error=None):
    m = model()
    run_hooked(m, hook_class, error)
    assert n_hooks(m) == 0
    torch.save(m, io.BytesIO())
    second = run_hooked(m, hook_class, None)
    assert [len(h.stats) for h in second] == [5, 5, 5]


@pytest.mark.case("C118")
@pytest.mark.parametrize("error", [None, RuntimeError(), KeyboardInterrupt()])
def test_no_hook_stays_however_the_run_ended(error):
    check_no_hook_stays(Hook, error)


def test_check_of_c118_fails_for_a_hook_that_stays():
    with pytest.raises(AssertionError):
        check_no_hook_stays(LeakyHook)


# ---- layers whose hooks never fire ----


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    @torch.compile(backend="eager")
    def forward(self, x):
        return self.head(self.body(x))


def net():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return nn.Sequential(nn.Linear(3, 4), body, nn.Linear(4, 1))


def compiled_part(m):
    m[1] = torch.compile(m[1], backend="eager")
    return m


def traced_part(m):
    m[1] = torch.jit.trace(m[1], torch.randn(2, 4))
    return m


def compiled_forward(m):
    m.forward = torch.compile(m.forward, backend="eager")
    return m


HIDING = {
    "a compiled part": (lambda: compiled_part(net()), "1._orig_mod.0 Linear, 1._orig_mod.1 ReLU"),
    "a traced part": (lambda: traced_part(net()), "TracedModule"),
    "a decorated forward": (Decorated, "body Linear, head Linear"),
}


def check_silence(kind, run):
    make, names = HIDING[kind]
    m = make()
    m(torch.randn(2, 3))  # it compiles now: hooks are too late
    with pytest.warns(UserWarning, match="compiled or traced, and does not run hooks") as seen:
        run(m)
    (said,) = [str(w.message) for w in seen if "nothing is seen" in str(w.message)]
    assert names in said


RUNS = {
    "statistics": lambda m: toy_learner(model=m).fit(2, cbs=ActivationStats()),
    "diagnosis": lambda m: toy_learner(model=m).diagnose(2),
    "summary": lambda m: toy_learner(model=m).summary(),
}


@pytest.mark.case("F43")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", HIDING)
def test_layers_in_compiled_or_traced_modules_are_named_once(kind, run):
    if run != "summary" or kind == "a traced part":  # there, compiled ones run as they were before
        check_silence(kind, RUNS[run])


@pytest.mark.case("F43")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("run", RUNS)
def test_records_that_are_empty_without_a_word_would_be_seen(run, monkeypatch):
    for module in (hooks, summary):
        monkeypatch.setattr(module, "hidden_layers", lambda model: set())
    with pytest.raises(pytest.fail.Exception, match="DID NOT WARN"):
        check_silence("a traced part", RUNS[run])


@pytest.mark.case("F43")
def test_hooks_on_the_children_of_a_compiled_forward_say_so():
    m = compiled_forward(net())
    with pytest.warns(UserWarning, match="nothing is seen of Linear"):
        Hooks(m, nothing).remove()


@pytest.mark.case("F43")
def test_hooks_that_do_fire_and_layers_that_are_not_used_are_no_reason_to_warn():
    m = net()
    m.unused = nn.Linear(1, 1)
    m.forward = lambda x: m[2](m[1](m[0](x)))
    m[1].compile(backend="eager")  # runs for the first time when the hooks are there
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="nothing is seen")
        toy_learner(model=m).fit(1, cbs=ActivationStats())
