"""Passes over images repeat by seed, worker, epoch and place, and tfms are prepared alike."""

import functools
import io
import operator

import datasets
import pytest
import torch
from image_files import Jitter, add_corrupt, all_of, raw, sample, write_folder

from minilearn import image_dls
from minilearn.core.stream import Stream
from minilearn.data import seeded
from minilearn.data.decode import to_tensor
from minilearn.data.images.stream_loader import StreamLoader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("images"), 60)
    add_corrupt(folder)
    return folder


def draws(loader) -> list[tuple]:
    """Return what the three generators drew for each image, in the order of the epoch."""
    return [tuple(x) for x in all_of(loader)[0][:, :, 0, 0].tolist()]


def jittered(folder, **options):
    return image_dls(folder, 8, tfms=Jitter(), normalize=False, **options).train


def check_draws(make):
    """No draw comes twice in two epochs, and the same seed repeats them all."""
    loader, again = make(), make()
    first, second = draws(loader), draws(loader)
    assert len(first) > 50
    for column in zip(*first, *second, strict=True):
        assert len(set(column)) == len(column)
    assert (draws(again), draws(again)) == (first, second)


@pytest.mark.case("C140")
@pytest.mark.filterwarnings("ignore:3 of 63 images")
@pytest.mark.parametrize("workers", [0, 3])
def test_random_transforms_draw_anew_for_each_image_and_repeat_by_seed(folder, workers):
    check_draws(lambda: jittered(folder, workers=workers, seed=5))


@pytest.mark.case("C140")
@pytest.mark.filterwarnings("ignore:3 of 63 images")
def test_the_check_of_draws_sees_workers_with_one_state(folder, monkeypatch):
    monkeypatch.setattr(seeded, "derive_seed", lambda *numbers: 7)
    with pytest.raises(AssertionError):
        check_draws(lambda: jittered(folder, workers=3, seed=5))


@pytest.mark.filterwarnings("ignore:3 of 63 images")
def test_draws_do_not_depend_on_the_number_of_workers(folder):
    assert draws(jittered(folder)) == draws(jittered(folder, workers=2))
    assert draws(jittered(folder)) != draws(jittered(folder, seed=43))


def stored():
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    columns = {"image": sample(), "label": [i % 2 for i in range(60)]}
    return datasets.Dataset.from_dict(columns, features=features)


def hub_stream():
    return {split: stored().to_iterable_dataset(num_shards=4) for split in ("train", "test")}


MAKERS = {
    "in memory": lambda folder: image_dls(folder, 8).train,
    "by item": lambda folder: jittered(folder),
    "in workers": lambda folder: jittered(folder, workers=2),
    "stream": lambda folder: jittered(hub_stream()),
    "stream in workers": lambda folder: jittered(hub_stream(), workers=2),
}


@pytest.mark.filterwarnings("ignore:3 of 63 images")
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_run_resumed_in_mid_epoch_gets_the_rest_of_the_epoch_and_the_next(folder, make):
    whole = Stream(make(folder), "training")
    list(whole)
    expected = list(whole), list(whole)  # the second and the third epoch
    broken = Stream(make(folder), "training")
    list(broken)
    batches = iter(broken)
    for _ in range(3):
        next(batches)
    place = broken.state_dict()
    broken.close()  # its workers
    resumed = Stream(make(folder), "training")
    resumed.load_state_dict(place)
    for ours, theirs in ((list(resumed), expected[0][3:]), (list(resumed), expected[1])):
        for a, b in zip(ours, theirs, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.filterwarnings("ignore:3 of 63 images")
@pytest.mark.parametrize("make", [MAKERS["in memory"], MAKERS["by item"]])
def test_processes_that_share_the_images_see_each_once(folder, make):
    whole = [tuple(x.flatten().tolist()) for x in all_of(make(folder))[0]]
    shared = []
    for rank in range(2):
        cut = functools.partial(map, operator.itemgetter(slice(rank, None, 2)))
        part = make(folder).batches(0, cut)
        shared += [tuple(x.flatten().tolist()) for x in all_of(part)[0]]
    assert sorted(shared) == sorted(whole)


# ---- transforms ----


def test_a_transform_sees_the_image_before_it_is_resized(folder):
    seen = []

    def note(image):
        seen.append((image.mode, image.size))
        return image.rotate(180)

    plain = image_dls(folder, 8, size=14, max_errors=1.0)
    turned = image_dls(folder, 8, size=14, max_errors=1.0, tfms=note)
    with pytest.warns(UserWarning, match="could not be read"):
        a, b = raw(plain, "train"), raw(turned, "train")
    assert set(seen) == {("RGB", (28, 28))}
    assert torch.equal(raw(plain, "valid"), raw(turned, "valid"))  # training images alone
    order = [sum(map(int, x.flatten())) for x in a], [sum(map(int, x.flatten())) for x in b]
    assert sorted(order[0]) == pytest.approx(sorted(order[1]), rel=0.01)


def test_transforms_may_give_pixels_or_floats_of_0_to_1(folder):
    as_image = image_dls(folder, 8, tfms=lambda image: image)
    as_pixels = image_dls(folder, 8, tfms=to_tensor)
    as_floats = image_dls(folder, 8, tfms=lambda image: to_tensor(image) / 255)
    with pytest.warns(UserWarning, match="could not be read"):
        x, y, z = (all_of(dls.train)[0] for dls in (as_image, as_pixels, as_floats))
    assert torch.equal(x, y) and torch.allclose(x, z, atol=1e-6)


def test_a_transform_that_normalises_by_itself_is_an_error_that_says_where_to(folder):
    dls = image_dls(folder, 8, tfms=lambda image: to_tensor(image).float() - 100)
    with pytest.raises(ValueError, match=r"tfms gave floats.*Normalise by mean= and std="):
        list(dls.train)


# ---- streams ----


def test_a_stream_gives_every_image_once_in_another_order_each_epoch():
    dls = image_dls(hub_stream(), 16, channels=1)
    kept = image_dls({"train": stored(), "test": stored()}, 16, channels=1, normalize=False)
    passes = [all_of(dls.train)[0].mul(dls.std).add(dls.mean) for _ in range(2)]
    sums = [x.sum((1, 2, 3)).tolist() for x in (*passes, all_of(kept.train)[0])]
    assert sorted(sums[0]) == pytest.approx(sorted(sums[2]), rel=1e-4)
    assert sums[0] != sums[1] and sorted(sums[0]) == pytest.approx(sorted(sums[1]))
    assert isinstance(dls.train, StreamLoader) and dls.pipeline.classes == ["a", "b"]
    assert torch.equal(dls.mean, image_dls({"train": stored(), "test": stored()}, channels=1).mean)


def broken_rows():
    for i in range(60):
        data = b"broken" if i in (3, 59) else png(sample()[i])
        yield {"image": {"bytes": data, "path": f"{i}.png"}, "label": i % 2}


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_errors_of_a_stream_are_counted_and_the_batches_stay_full():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    ds = datasets.IterableDataset.from_generator(broken_rows, features=features)
    with pytest.warns(UserWarning, match="there is no validation data"):
        dls = image_dls(ds, 8, channels=1)
    with pytest.warns(UserWarning, match="2 images of 'train' could not be read.*3.png"):
        sizes = [len(y) for _, y in dls.train]
    assert sizes == [8] * 7 + [2]
    assert dls.summary().errors == {"train": dict.fromkeys(["3.png", "59.png"], "this is no image")}
    strict = image_dls(ds, 8, channels=1, valid=0, on_error="raise", size=28, normalize=False)
    with pytest.raises(ValueError, match=r"^(3|59)\.png: this is no image"):
        list(strict.train)


def test_classes_of_a_stream_that_cannot_be_known_are_asked_for():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    rows = [{"image": sample()[i], "label": "ab"[i % 2]} for i in range(4)]
    ds = datasets.Dataset.from_list(rows, features=features).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"classes of a stream.*classes=\[\.\.\.\]"):
        image_dls(ds, 2, valid=0)
    dls = image_dls(ds, 2, valid=0, classes=["b"])
    assert all_of(dls.train)[1].tolist() == [0, 0]
