"""Two processes that disturb each other: what one does, all do, and nobody hangs."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from .fits import data, net
from .launch import told, torchrun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cases")


@pytest.fixture(scope="module")
def run(folder):
    return torchrun("cases", folder)


@pytest.fixture(scope="module")
def both(run, folder):
    return told(folder)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.case("C130")
def test_each_of_eleven_samples_counts_once(both):
    for found in (one["C130"] for one in both):
        targets = data(11, 1)[1]
        assert torch.equal(found["targs"], targets)
        for name in ("preds", "out", "iterated"):
            torch.testing.assert_close(found[name], found["direct"], atol=1e-6, rtol=0)
        right = (found["direct"].argmax(1) == targets).double().mean()
        assert found["accuracy"] == pytest.approx(float(right), abs=1e-6)
        assert found["loss"] == pytest.approx(
            float(F.cross_entropy(found["direct"], targets)), abs=1e-6
        )
    (loss, targs), (other, _) = both[0]["C130 one"], both[1]["C130 one"]
    assert loss == other and targs.tolist() == data(1, 1)[1].tolist()


@pytest.mark.case("C130")
def test_padding_would_be_seen(both):
    found = both[0]["C130"]
    padded = torch.cat([found["preds"], found["preds"][:1]])  # as samplers make it even
    targets = torch.cat([found["targs"], found["targs"][:1]])
    assert float(F.cross_entropy(padded, targets)) != pytest.approx(found["loss"], abs=1e-6)


@pytest.mark.case("C131")
@pytest.mark.parametrize(
    ("name", "ended"), [("round", (1, 0, 12, 2)), ("batch", (1, 2, 9, 2)), ("before", (1, 2, 9, 2))]
)
def test_a_stop_of_one_process_is_a_stop_of_all(both, name, ended):
    check_stop([one[f"C131 {name}"] for one in both], ended)


@pytest.mark.parametrize(
    ("event", "batch"), [("before_batch", 2), ("after_loss", 2), ("after_batch", 2)]
)
def test_learn_stop_in_one_process_ends_all_after_the_same_batch(both, event, batch):
    check_stop([one[f"stop {event}"] for one in both], (1, batch, 7 + batch, 2))


def test_learn_stop_after_the_barrier_of_a_batch_ends_all_after_the_next(both):
    check_stop([one["stop cleanup_batch"] for one in both], (1, 3, 10, 2))


def check_stop(found, ended):
    """All processes ended in one place, with the same weights."""
    (first, ours), (second, theirs) = found
    assert first == second == ended
    assert same(ours, theirs)


@pytest.mark.case("C131")
def test_a_process_that_goes_on_would_be_seen(both):
    stopped, other = both[0]["C131 round"], both[1]["C131 batch"]
    with pytest.raises(AssertionError):
        check_stop([stopped, other], (1, 0, 12, 2))


@pytest.mark.case("C132")
def test_saving_asks_nobody(run, both, folder):
    check_saved(folder)
    ours, theirs = (torch.load(folder / f"{n}.ckpt", weights_only=True) for n in ("all", "first"))
    assert same(ours["model"].values(), theirs["model"].values())
    assert not any("module" in name for name in ours["model"])


def check_saved(folder):
    """Both kinds of file are there, whole, whoever called."""
    for name in ("all", "first"):
        for suffix in (".ckpt", ".safetensors"):
            assert (folder / f"{name}{suffix}").exists()
    assert not list(Path(folder).glob(".*.part"))


@pytest.mark.case("C132")
def test_a_half_written_file_would_be_seen(run, folder):
    part = folder / ".all.ckpt.1.part"
    part.touch()
    with pytest.raises(AssertionError):
        check_saved(folder)
    part.unlink()


def check_schedule(found):
    """Ten updates with ten rates, as in one process."""
    assert found["updates"] == found["steps"] == 10
    assert found["lrs"] == pytest.approx([0.1 * 0.9**k for k in range(10)])


@pytest.mark.case("C133")
def test_a_schedule_steps_once_an_update(both):
    for one in both:
        check_schedule(one["C133"])


@pytest.mark.case("C133")
def test_a_schedule_that_steps_once_a_process_would_be_seen(both):
    twice = {"steps": 20, "lrs": [0.1 * 0.9 ** (2 * k) for k in range(10)]}
    with pytest.raises(AssertionError):
        check_schedule(both[0]["C133"] | twice)


def check_orders(passes):
    """Each epoch has all samples once over both processes, in an order of its own."""
    first, second = passes
    rows = [
        [sum(group, []) for group in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(first, second, strict=True)
    ]
    orders = [sum(groups, []) for groups in rows]
    assert all(sorted(order) == list(range(len(order))) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)


@pytest.mark.case("C134")
@pytest.mark.parametrize("name", ["arrays", "torch", "distributed", "batch sampler", "own batches"])
def test_orders_differ_and_all_samples_are_seen(both, name):
    check_orders([one[f"C134 {name}"] for one in both])


@pytest.mark.case("C134")
def test_the_same_order_in_each_epoch_would_be_seen(both):
    passes = [[one["C134 arrays"][0]] * 3 for one in both]
    with pytest.raises(AssertionError):
        check_orders(passes)


def by_hand(batches):
    """SGD over batches of rows, with plain torch."""
    torch.manual_seed(3)
    model = net()
    for rows in batches:
        x = torch.tensor(rows)[:, None].repeat(1, 4)
        y = data(24)[1]
        F.cross_entropy(model(x), y[torch.tensor(rows).long()]).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return list(model.parameters())


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_batch_that_one_process_cancels_leaves_the_others_update_to_all(both, name):
    (ours, first), (theirs, second) = (one[f"cancelled {name}"] for one in both)
    assert same(ours, theirs) and first == second == (0, 0, 4, 1)


def test_a_cancelled_batch_is_not_in_its_group(both):
    (ours, first, rows), (theirs, second, more) = (one["cancelled accumulated"] for one in both)
    assert same(ours, theirs) and first == second == (0, 0, 2, 1)
    left = [batch for i, batch in enumerate(more[0]) if i not in (1, 2)]
    groups = [sum(rows[0][:3], []) + left[0], sum(rows[0][3:], []) + sum(left[1:], [])]
    for weight, wanted in zip(ours, by_hand(groups), strict=True):
        torch.testing.assert_close(weight, wanted, atol=1e-5, rtol=1e-5)


def test_streams_end_with_the_shortest(both):
    assert both[0]["streams"] == both[1]["streams"]
    assert both[0]["streams"][2] == 2 * 5


def test_noise_differs_and_weights_begin_equal(run, both):
    assert same(both[0]["odd"], both[1]["odd"])
    assert not same(both[0]["noise"], both[1]["noise"])
    # four models are made after fits, where the noise differs; the first process says so
    assert run.stderr.count("UserWarning: the processes made different weights") == 4


def test_a_search_is_one_search_and_leaves_no_trace(both):
    (lrs, losses, kept), theirs = (one["search"] for one in both)
    assert (lrs, losses) == theirs[:2] and len(lrs) == 12 and all(kept + theirs[2])
    assert both[0]["validate inside"] == both[1]["validate inside"]


def test_weights_without_a_gradient_are_named(both):
    for one in both:
        assert "2 weights got no gradient: idle.weight, idle.bias" in one["unused"]


@pytest.mark.case("F38")
def test_weights_without_a_gradient_in_a_later_batch_are_named(both):
    for one in both:
        text = one["unused later"]
        assert "in an earlier batch 2 weights got no gradient: idle.weight, idle.bias" in text
        assert "find_unused_parameters" in text


@pytest.mark.case("F38")
def test_torchs_own_words_would_be_seen(both):
    assert "indices" not in both[0]["unused later"]


@pytest.mark.case("F37")
def test_loaders_that_give_each_process_its_part_are_not_shared_again(both):
    assert [one["own"][0] for one in both] == [4, 4]
    seen = sorted(x for one in both for batches in one["own"][1] for (x,) in batches)
    assert seen == [float(i) for i in range(8)]


@pytest.mark.case("F37")
def test_the_check_notices_a_part_that_is_shared_a_second_time(both):
    with pytest.raises(AssertionError):
        assert both[0]["shared twice"][0] == 4


@pytest.mark.case("F37")
def test_batches_of_a_stream_that_are_left_out_are_said_once(run):
    assert run.stderr.count("the training stream: ") == 1


@pytest.mark.case("F39")
def test_a_validation_drops_its_incomplete_batch_and_no_other(both):
    for ours, right in both[0]["dropped"]:
        assert ours == pytest.approx(right, abs=1e-6)


@pytest.mark.case("F39")
def test_the_check_notices_a_group_that_is_dropped_as_a_whole():
    from minilearn.distributed.shards import parts

    groups = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    both = [(training, rank) for training in (False, True) for rank in (0, 1)]
    counted = [sum(map(len, parts(groups, rank, 2, training, True))) for training, rank in both]
    assert counted == [6, 6, 4, 4]


def check_differences(found):
    said = found["differs"]
    assert said.pop("nothing") == [] == said.pop("a callback that watches")
    for what, messages in said.items():
        assert len(messages) == 1 and what in messages[0], (what, messages)
    return len(said)


@pytest.mark.case("F37")
def test_fits_that_differ_from_process_to_process_are_said_in_the_first(both):
    assert check_differences({"differs": dict(both[0]["differs"])}) == 7
    assert not any(both[1]["differs"].values())


@pytest.mark.case("F37")
def test_the_check_notices_processes_that_are_not_compared(both):
    with pytest.raises(AssertionError):
        check_differences({"differs": dict(both[1]["differs"])})


def test_buffers_are_equal_and_the_model_is_given_back(both):
    assert same(both[0]["buffers"], both[1]["buffers"]) and both[0]["wrapped"]


def test_going_different_ways_is_an_error_that_says_so(both):
    for one in both:
        assert "went different ways" in one["different ways"]


def test_only_the_first_process_shows_rows(run):
    assert run.stdout.count("epoch") and run.stdout.count("C13") == 0
    header = [line for line in run.stdout.splitlines() if "train_loss" in line]
    assert len(header) == len(set(range(len(header))))
