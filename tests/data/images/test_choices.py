"""What the user chooses: labels from file names, validation images, and how images are read."""

import io
import json
import re
import shutil
import warnings

import datasets
import numpy as np
import pytest
import torch
from image_files import all_of, jpeg, sample
from PIL import Image, ImageOps

from minilearn import CheckpointCB, Learner, RunCB, TrainCB, image_dls, load_learner
from minilearn.data.decode import open_image, read_image
from minilearn.data.pipeline import Pipeline


def named_files(folder, names):
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(sample()[i]))
    return folder


PETS = [f"{kind}_{i}.jpg" for kind in ("cat", "great_dane") for i in range(6)]


def class_of(path):
    return path.rpartition("_")[0]


# ---- labels ----


@pytest.mark.parametrize("labels", [class_of, r"^(.+)_\d+\.jpg$"], ids=["function", "pattern"])
@pytest.mark.parametrize("inside", ["", "all/"], ids=["flat", "in a folder"])
def test_labels_come_from_file_names(tmp_path, labels, inside):
    named_files(tmp_path / "pets", [inside + name for name in PETS])
    if callable(labels):
        labels = lambda path: class_of(path.removeprefix("all/"))  # noqa: E731
    dls = image_dls(tmp_path / "pets", 4, labels=labels)
    assert dls.pipeline.classes == ["cat", "great_dane"]
    names = dls.filenames["train"] + dls.filenames["valid"]
    assert sorted(names) == sorted(inside + name for name in PETS)
    for role in ("train", "valid"):
        targets = dls[role].dataset.targets.tolist()
        assert targets == [int("dane" in name) for name in dls.filenames[role]]


def test_labels_from_names_go_with_splits_archives_and_several_labels(tmp_path):
    names = [f"{split}/{name}" for split in ("train", "Val") for name in PETS]
    named_files(tmp_path / "pets", names)
    path = shutil.make_archive(str(tmp_path / "pets"), "zip", tmp_path / "pets")
    for source in (tmp_path / "pets", path):
        dls = image_dls(source, 4, labels=r"([a-z]+)_\d", splits={"valid": "Val"})
        assert dls.pipeline.classes == ["cat", "dane"]
        assert [len(found) for found in dls.filenames.values()] == [12, 12]
    dls = image_dls(tmp_path / "pets/train", 4, labels=r"(.+)_\d", sep="_", valid=0)
    assert dls.pipeline.classes == ["cat", "dane", "great"]
    assert dls.train.dataset.targets[-1].tolist() == [0, 1, 1]


def test_a_function_replaces_the_labels_of_tables_data_sets_and_streams(tmp_path):
    named_files(tmp_path, PETS)
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *(f"{n},x" for n in PETS)]))
    stored = [{"bytes": jpeg(sample()[0]), "path": name} for name in PETS]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    ds = datasets.Dataset.from_dict({"image": stored, "label": ["x"] * 12}, features=features)
    for source in (tmp_path / "t.csv", ds):
        assert image_dls(source, 4, labels=class_of).pipeline.classes == ["cat", "great_dane"]
    stream = ds.to_iterable_dataset()
    dls = image_dls(stream, 4, labels=class_of, classes=["cat", "great_dane"], valid=0)
    assert sorted(all_of(dls.train)[1].tolist()) == [0] * 6 + [1] * 6


def test_labels_that_no_name_gives_and_patterns_that_are_none_are_errors(tmp_path):
    named_files(tmp_path, [*PETS, "odd.jpg"])
    with pytest.raises(ValueError, match=r"1 of 13 images for train have no label: odd\.jpg"):
        image_dls(tmp_path, 4, labels=r"(.+)_\d", valid=0)
    with pytest.raises(ValueError, match="is no regular expression: missing"):
        image_dls(tmp_path, 4, labels=r"(.+_\d")


# ---- validation ----


def test_a_function_or_a_list_says_which_images_are_for_validation(tmp_path):
    named_files(tmp_path, PETS)
    fold = ["cat_0.jpg", "great_dane_3.jpg"]
    rows = [PETS.index(name) for name in fold]
    for valid in (fold.__contains__, fold, rows, np.array(rows)):
        dls = image_dls(tmp_path, 4, labels=class_of, valid=valid)
        assert dls.filenames["valid"] == fold and len(dls.filenames["train"]) == 10
        assert dls.splits["valid"] == "2 images of train"
    with pytest.raises(
        ValueError, match=r"no training image: cat_9.jpg; did you mean 'cat_\d.jpg'"
    ):
        image_dls(tmp_path, labels=class_of, valid=["cat_9.jpg"])
    with pytest.raises(ValueError, match="of 12 images leaves none to train on"):
        image_dls(tmp_path, labels=class_of, valid=lambda path: True)


def test_a_choice_of_the_user_wins_over_a_split_that_is_found(tmp_path):
    named_files(tmp_path, [f"{split}/{name}" for split in ("train", "val") for name in PETS])
    with pytest.warns(UserWarning, match=r"not used: \['val'\]"):
        dls = image_dls(tmp_path, 4, labels=class_of, valid=lambda path: "_0" in path)
    assert dls.filenames["valid"] == ["train/cat_0.jpg", "train/great_dane_0.jpg"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.7])
def test_images_of_one_group_are_never_on_both_sides(tmp_path, seed, fraction):
    names = [f"{kind}/{person}_{i}.jpg" for person in "pqrstuvwxy" for kind in "ab" for i in "12"]
    named_files(tmp_path / "all", names)
    person = re.compile(r"/(\w)_").search
    rows = [f"all/{name},{name[0]},{person(name)[1]}" for name in names]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,person", *rows]))
    by_column = image_dls(tmp_path / "t.csv", 4, groups="person", valid=fraction, seed=seed)
    by_name = image_dls(
        tmp_path / "all", 4, groups=lambda p: person(p)[1], valid=fraction, seed=seed
    )
    for dls in (by_column, by_name):
        train, valid = ({person(n)[1] for n in dls.filenames[role]} for role in ("train", "valid"))
        assert not train & valid and train | valid == set("pqrstuvwxy")
        assert len(dls.filenames["valid"]) == fraction * 40
    with pytest.raises(ValueError, match="no column 'persn' of groups.*did you mean 'person'"):
        image_dls(tmp_path / "t.csv", groups="persn")


@pytest.mark.parametrize("valid", ["Val", "VAL", "val", "Evaluation"])
def test_splits_are_named_in_the_spelling_of_the_user(tmp_path, valid):
    folder = "eval" if valid == "Evaluation" else valid
    named_files(tmp_path, [f"{split}/a/{i}.jpg" for split in ("Train", folder) for i in range(3)])
    dls = image_dls(tmp_path, 2, splits={"train": "Train", "valid": valid})
    assert [len(found) for found in dls.filenames.values()] == [3, 3]


# ---- reading ----


def photo(width=500, height=375):
    """A smooth image with some noise, as a camera takes them."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noisy = smooth + generator.normal(0, 4, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def stored(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", [None, 1, 3, 6])
def test_pixels_are_those_of_pil_that_copies_everything(mode, orientation):
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    data = stored(photo(60, 40).convert(mode), exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        expected = ImageOps.exif_transpose(image.copy() if orientation is None else image)
        pixels = np.array(expected.convert("RGB")).transpose(2, 0, 1)
    assert torch.equal(read_image(data), torch.from_numpy(pixels.copy()))


def test_an_image_of_the_users_is_not_changed_by_reading_it():
    image = photo(60, 40)
    image.getexif()[0x0112] = 6
    pixels = read_image(image)
    assert image.size == (60, 40) and image.getexif()[0x0112] == 6
    assert pixels.shape == (3, 60, 40)
    plain = photo(60, 40)
    read_image(plain).zero_()
    assert np.array_equal(plain, photo(60, 40))


@pytest.mark.parametrize("resize", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_draft_decoding_reads_less_and_changes_pixels_by_less_than_a_level_or_so(
    resize, orientation
):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = stored(photo(800, 600), exif=exif)
    default = Pipeline((64, 96), resize, 3)
    draft = Pipeline((64, 96), resize, 3, decoder="draft")
    a, b = default.pixels(data).float(), draft.pixels(data).float()
    assert 0 < (a - b).abs().mean() < 1.2
    upright = (800, 600) if orientation == 6 else (600, 800)
    opened = open_image(data, draft._scale_of)
    assert opened.size[::-1] in [tuple(n // k for n in upright) for k in (2, 4)]
    assert all(had >= 2 * need for had, need in zip(opened.size[::-1], (64, 96), strict=True))


def test_draft_decoding_leaves_images_that_are_hardly_larger_and_other_formats_as_they_are():
    file = io.BytesIO()
    photo(800, 600).save(file, "PNG")
    for data in (file.getvalue(), stored(photo(120, 180))):
        a, b = (Pipeline((96, 64), "crop", 3, decoder=d).pixels(data) for d in ("pil", "draft"))
        assert torch.equal(a, b)


def test_transforms_of_the_user_see_the_stored_size_with_draft_decoding(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(stored(photo()))
    sizes = []

    def note(image):
        sizes.append(image.size)
        return image

    dls = image_dls(tmp_path, 1, size=32, valid=0, decoder="draft", tfms=note)
    list(dls.train)
    assert sizes == [(500, 375)]
    assert dls.pipeline.decoder == "draft"


@pytest.mark.parametrize("how", ["bicubic", "nearest"])
def test_interpolation_is_that_of_pil(how):
    image = photo(60, 40)
    expected = image.resize((20, 30), getattr(Image.Resampling, how.upper()))
    found = Pipeline((30, 20), "stretch", 3, interpolation=how).pixels(image)
    assert np.array_equal(found.permute(1, 2, 0), expected)


@pytest.mark.parametrize("size", [(300, 200), (200, 301), (224, 224)])
def test_crop_pct_resizes_the_shorter_side_and_cuts_out_the_centre(size):
    image, side = photo(*size), 112
    across, down = size
    shorter = int(side / 0.875)  # 128
    if across <= down:
        resized = image.resize((shorter, int(shorter * down / across)), Image.Resampling.BICUBIC)
    else:
        resized = image.resize((int(shorter * across / down), shorter), Image.Resampling.BICUBIC)
    left, top = (round((n - side) / 2) for n in resized.size)
    expected = resized.crop((left, top, left + side, top + side))
    pipeline = Pipeline((side, side), "crop", 3, interpolation="bicubic", crop_pct=0.875)
    assert np.array_equal(pipeline.pixels(image).permute(1, 2, 0), expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decoder": "turbo"}, "decoder is one of pil, draft, torchvision, got 'turbo'"),
        ({"interpolation": "cubic"}, "interpolation is one of nearest, .*got 'cubic'"),
        ({"crop_pct": 1.5}, "crop_pct is a fraction"),
        ({"decoder": "torchvision"}, "gives tensors to tfms="),
    ],
)
def test_ways_to_read_that_do_not_exist_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        image_dls(named_files(tmp_path, PETS), 4, **options)


# ---- what remembers it ----


def learner(dls, *cbs):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 20 * 20, 2))
    return Learner(model, dls, torch.nn.functional.cross_entropy, lr=0.1, cbs=[TrainCB(), *cbs])


def test_how_images_are_read_is_in_runs_checkpoints_and_exports_and_compared(tmp_path):
    named_files(tmp_path / "pets", PETS)
    options = {"labels": class_of, "size": 20}
    dls = image_dls(tmp_path / "pets", 4, **options, decoder="draft", interpolation="box")
    learn = learner(dls, CheckpointCB(tmp_path / "run"), RunCB(tmp_path / "run"))
    learn.fit(1)
    (entry,) = json.loads((tmp_path / "run/run.json").read_text())
    assert entry["images"] == {**dls.pipeline.reading, "size": [20, 20]}
    assert (entry["images"]["decoder"], entry["images"]["interpolation"]) == ("draft", "box")
    for pipeline, words in ((dls.pipeline, []), (None, ["image decoder: draft saved, pil here"])):
        here = image_dls(tmp_path / "pets", 4, pipeline=pipeline, **options)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            learner(here).fit(2, resume=tmp_path / "run")
        text = " ".join(str(warning.message) for warning in said)
        assert all(word in text for word in words) and ("image decoder" in text) == bool(words)
    learn.export(tmp_path / "out", pt2=True)
    assert load_learner(tmp_path / "out", trust=True).dls.pipeline == dls.pipeline


# ---- batches ----


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_fn_makes_the_batches_of_a_list_of_pixels_and_targets(tmp_path, workers):
    named_files(tmp_path, PETS)
    (tmp_path / "cat_0.jpg").write_bytes(b"x")
    dls = image_dls(
        tmp_path, 4, labels=class_of, collate_fn=mirrored, workers=workers, valid=0, max_errors=1
    )
    plain = image_dls(
        tmp_path, 4, labels=class_of, pipeline=dls.pipeline, memory_gb=0, valid=0, max_errors=1
    )
    with pytest.warns(UserWarning, match="1 of 12 images"):
        pairs = list(zip(dls.train, plain.train, strict=True))
    assert sum(len(y) for (_, y, _), _ in pairs) == 11
    for (x, y, n), (x_plain, y_plain) in pairs:
        assert torch.equal(x, x_plain.flip(-1)) and torch.equal(y, y_plain) and n == len(y)


def mirrored(items):
    pixels, targets = zip(*items, strict=True)
    assert pixels[0].dtype == torch.uint8
    return torch.stack(pixels).flip(-1), torch.stack(targets), torch.tensor(len(items))


@pytest.mark.parametrize("given", [None, True, False])
def test_pin_memory_is_that_of_the_device_or_of_the_user(tmp_path, given):
    options = {"labels": class_of, "memory_gb": 0, "device": "cpu", "pin_memory": given}
    assert image_dls(named_files(tmp_path, PETS), 4, **options).train.pin_memory is bool(given)


# ---- finding many files ----


def test_files_are_in_the_order_of_the_parts_of_their_paths(tmp_path):
    names = ["b/1.png", "a b/1.png", "a/1.png", "a/2/3.png", "a/10.png", "a-c/1.png", "A/1.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        sample()[0].save(tmp_path / name)
    found = image_dls(tmp_path, 2, valid=0).filenames["train"]
    assert found == sorted(names, key=lambda name: name.split("/"))


def test_a_sample_gives_size_and_statistics_of_many_images(tmp_path, monkeypatch):
    from minilearn.data.images import sample as sampling

    names = [f"{kind}_{i}.jpg" for kind in ("cat", "dog") for i in range(30)]
    named_files(tmp_path, names)
    whole = image_dls(tmp_path, 4, labels=class_of)
    monkeypatch.setattr(sampling, "MANY", 40)
    dls = image_dls(tmp_path, 4, labels=class_of, memory_gb=0)
    assert dls.pipeline.size == whole.pipeline.size
    assert dls.mean.tolist() == pytest.approx(whole.mean.tolist(), abs=0.03)
    assert not torch.equal(dls.mean, whole.mean)
