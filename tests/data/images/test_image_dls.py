"""Where images may lie, and that they come out of there as the same batches."""

import csv
import io
import tarfile
import warnings
import zipfile

import datasets
import pandas as pd
import pytest
import torch
from image_files import CLASSES, add_unusual, all_of, pixels, raw, sample, write_folder

from minilearn import DataLoaders, image_dls
from minilearn.data.images.find import find_images
from minilearn.data.images.listing import Columns

BOTH = pytest.mark.parametrize("memory_gb", [2.0, 0.0], ids=["in memory", "by item"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("images") / "all")


@pytest.fixture(scope="module")
def expected(folder):
    return check_folder(image_dls(folder, 8), folder)


def check_folder(dls, folder):
    """Each image of the validation split is the file of its name, its target its folder."""
    names = dls.filenames["valid"]
    seen = [sample()[(int(name.split("/")[2][:3]) + 24) % 60].convert("RGB") for name in names]
    lossless = [i for i, name in enumerate(names) if name.endswith("png")]
    assert torch.equal(
        raw(dls, "valid")[lossless], torch.stack([pixels(seen[i]) for i in lossless])
    )
    assert [CLASSES[i] for i in all_of(dls.valid)[1]] == [name.split("/")[1] for name in names]
    assert dls.pipeline.classes == list(CLASSES)
    return dls


def same_batches(a, b):
    pairs = zip(a.valid, b.valid, strict=True)
    return all(torch.equal(x, y) for pair in pairs for x, y in zip(*pair, strict=True))


@BOTH
def test_a_folder_of_splits_and_classes(folder, expected, memory_gb):
    dls = check_folder(image_dls(folder, 8, memory_gb=memory_gb), folder)
    assert same_batches(dls, expected)
    x, y = next(iter(dls.train))
    assert (x.shape, x.dtype, y.dtype) == ((8, 3, 28, 28), torch.float32, torch.int64)
    seen = all_of(dls.train)[0]
    assert seen.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-4)
    assert seen.std((0, 2, 3)).tolist() == pytest.approx([1] * 3, abs=1e-3)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Validation", "dev", "test"])
def test_splits_are_found_by_name(tmp_path, name):
    write_folder(tmp_path, 6, ("Train", name))
    dls = image_dls(tmp_path, 2)
    assert dls.splits["valid"] == name.lower()
    assert [len(dls.filenames[role]) for role in ("train", "valid")] == [6, 6]
    assert ("test" in dls.keys()) == (name == "test")


def test_where_there_is_no_split_a_part_of_each_class_is_for_validation(folder):
    dls = image_dls(folder / "train", 8, valid=0.25, seed=1)
    train, valid = (set(dls.filenames[role]) for role in ("train", "valid"))
    assert (len(train), len(valid), train & valid) == (18, 6, set())
    assert all_of(dls.valid)[1].bincount().tolist() == [2, 2, 2]
    assert dls.filenames == image_dls(folder / "train", 8, valid=0.25, seed=1).filenames
    assert dls.filenames != image_dls(folder / "train", 8, valid=0.25, seed=2).filenames
    assert image_dls(folder / "train", 8, valid=0).valid is None


def test_rounding_takes_nothing_from_a_small_class_on_the_whole(tmp_path):
    write_folder(tmp_path, 9, ("all",))
    dls = image_dls(tmp_path / "all", 2, valid=0.4)  # 1.2 of the 3 in each class
    assert [len(dls.filenames[role]) for role in ("train", "valid")] == [6, 3]
    with pytest.raises(ValueError, match=r"valid=0.01 of 9 images leaves none"):
        image_dls(tmp_path / "all", valid=0.01)


def test_a_flat_folder_is_for_prediction(folder, expected):
    dls = image_dls(folder / "valid" / "bag", pipeline=expected.pipeline)
    assert dls.keys() == ["test"]
    x, y = all_of(dls.test)
    assert y.tolist() == [-1] * 8
    of_bags = all_of(expected.valid)[1] == 0
    assert torch.equal(x, all_of(expected.valid)[0][of_bags])
    assert dls.filenames["test"] == sorted(p.name for p in (folder / "valid/bag").iterdir())
    assert dls.pipeline == expected.pipeline


def test_an_unlabelled_test_split_is_kept_beside_labelled_ones(tmp_path):
    write_folder(tmp_path, 12, ("train",))
    (tmp_path / "test").mkdir()
    sample()[0].save(tmp_path / "test" / "a.png")
    dls = image_dls(tmp_path, 4)
    assert all_of(dls.test)[1].tolist() == [-1]
    assert dls.splits["valid"] == "20% of train"


def test_every_kind_of_image_is_seen_as_it_is(tmp_path):
    (tmp_path / "odd").mkdir()
    expected = add_unusual(tmp_path / "odd")
    dls = image_dls(tmp_path / "odd", normalize=False)
    for name, seen in zip(dls.filenames["test"], raw(dls, "test"), strict=True):
        assert torch.equal(seen, pixels(expected[name])), name
    grey = image_dls(tmp_path / "odd", channels=1, normalize=False)
    row = grey.filenames["test"].index("deep.png")
    assert torch.equal(raw(grey, "test")[row, 0], pixels(expected["deep.png"])[0])


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
@BOTH
def test_archives_are_read_in_place(folder, expected, tmp_path, suffix, memory_gb):
    path = tmp_path / f"images{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for one in folder.rglob("*"):
                file.write(one, f"top/{one.relative_to(folder)}")
    else:
        with tarfile.open(path, "w") as file:
            file.add(folder, "./top")
    workers = 2 if memory_gb == 0 else 0
    dls = image_dls(path, 8, memory_gb=memory_gb, workers=workers)
    assert same_batches(dls, expected)
    assert list(tmp_path.iterdir()) == [path]  # nothing was unpacked


def write_tars(folder, form):
    """Write two archives for each split; `form` names an image by class, archive and number."""
    for split, count in (("train", 4), ("val", 2)):
        for shard in range(2):
            files = {form.format("37"[i % 2], shard, i): png(sample()[i]) for i in range(count)}
            files |= {f"{shard}_{i}.cls": (b"3", b"7")[i % 2] for i in range(count)}
            with tarfile.open(folder / f"{split}-{shard:04}.tar", "w") as tar:
                for name in sorted(files):
                    info = tarfile.TarInfo(name)
                    info.size = len(files[name])
                    tar.addfile(info, io.BytesIO(files[name]))


def test_archives_may_be_named_after_their_split(tmp_path):
    write_tars(tmp_path, "{}/{}_{}.png")
    dls = image_dls(tmp_path, 2)
    assert [len(dls.filenames[role]) for role in ("train", "valid")] == [8, 4]
    assert dls.pipeline.classes == ["3", "7"]
    assert all_of(dls.valid)[1].tolist() == [0, 1, 0, 1]


def test_labels_in_files_beside_the_images_are_read_by_datasets(tmp_path):
    write_tars(tmp_path, "{1}_{2}.png")
    files = {split: str(tmp_path / f"{split}-*.tar") for split in ("train", "val")}
    dd = datasets.load_dataset("webdataset", data_files=files, cache_dir=str(tmp_path / "cache"))
    dls = image_dls(dd, 2)
    assert [len(dls.filenames[role]) for role in ("train", "valid")] == [8, 4]
    assert dls.pipeline.classes == ["3", "7"]
    assert all_of(dls.valid)[1].tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="images for train have no label"):
        image_dls(tmp_path, 2)


def zipped(folder, **images):
    """Write archives by name, each of so many images under paths of this form."""
    for name, (count, form) in images.items():
        with zipfile.ZipFile(folder / f"{name.replace('__', '-')}.zip", "w") as file:
            for i in range(count):
                file.writestr(form.format(i), png(sample()[i]))


@pytest.mark.parametrize(
    "images",
    [
        {"part__1": (2, "{}.png"), "part__2": (2, "{}.png")},
        {"all": (4, "{}.png")},
        {"test": (2, "{}.png"), "val": (2, "{}.png")},
    ],
    ids=lambda images: ", ".join(images),
)
def test_archives_that_are_parts_of_a_set_or_splits_give_no_labels(images, tmp_path):
    zipped(tmp_path, **images)
    found = find_images(tmp_path, Columns())
    assert sum(len(items) for items in found.values()) == 4
    assert not any(items.labelled for items in found.values())


def test_class_folders_inside_archives_give_the_labels(tmp_path):
    zipped(tmp_path, cats=(2, "owls/{}.png"), dogs=(2, "mice/{}.png"))
    assert image_dls(tmp_path, 2, valid=0).pipeline.classes == ["mice", "owls"]


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_a_corrupt_archive_and_a_compressed_tar_are_named(tmp_path, folder):
    (tmp_path / "a.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"a\.zip is no archive, or a corrupt one"):
        image_dls(tmp_path / "a.zip")
    for name in ("b.tar.gz", "c.tar"):
        with tarfile.open(tmp_path / name, "w:gz") as tar:
            tar.add(folder, "top")
        with pytest.raises(
            ValueError, match=rf"{name} is no .*compressed .tar has to be decompressed first"
        ):
            image_dls(tmp_path / name)


def test_a_zip_that_was_written_again_is_read_anew(tmp_path):
    for form in ("a/{}.png", "another/{}.png"):
        zipped(tmp_path, all=(2, f"top/{form}"), rest=(2, "top/b/{}.png"))
        assert image_dls(tmp_path, 2, valid=0).pipeline.classes == [form.split("/")[0], "b"]


def rows_of(folder):
    paths = sorted(p for p in folder.rglob("*.*g") if p.is_file())
    return [(p.relative_to(folder).as_posix(), p.parent.name, p.parts[-3]) for p in paths]


def write_csv(path, head, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_of_paths_and_labels(folder, expected, suffix):
    path = folder / f"table{suffix}"
    frame = pd.DataFrame(rows_of(folder), columns=["file", "Target", "split"])
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    assert same_batches(image_dls(path, 8), expected)
    path.unlink()


def test_a_folder_may_bring_its_table_with_it(folder, tmp_path):
    rows = [(folder / path, label) for path, label, split in rows_of(folder) if split == "train"]
    write_csv(tmp_path / "metadata.csv", ("file_name", "label"), rows)
    dls = image_dls(tmp_path, valid=0)
    assert (len(dls.filenames["train"]), dls.pipeline.classes) == (24, list(CLASSES))


def test_labels_like_007_are_names_in_the_order_of_their_numbers(tmp_path):
    write_folder(tmp_path, 12, ("all",))
    files = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*.*g"))
    rows = [(path, ("007", "10", "2")[i % 3]) for i, path in enumerate(files)]
    dls = image_dls(write_csv(tmp_path / "t.csv", ("path", "label"), rows), 4)
    assert dls.pipeline.classes == ["2", "007", "10"]


def test_several_labels_become_rows_of_zeros_and_ones(tmp_path, folder):
    paths = [str(folder / row[0]) for row in rows_of(folder)[:4]]
    rows = zip(paths, ["b a", "a", "", "c b"], strict=True)
    dls = image_dls(write_csv(tmp_path / "t.csv", ("path", "tags"), rows), sep=" ", valid=0)
    x, y = all_of(dls.train)
    by_name = dict(zip(order_of(dls), y.tolist(), strict=True))
    assert [by_name[p] for p in paths] == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert (dls.pipeline.classes, y.dtype) == (["a", "b", "c"], torch.float32)


def order_of(dls):
    """The names in the order of the epoch that was just made."""
    from minilearn.data.seeded import shuffled

    names = dls.filenames["train"]
    return [names[i] for i in shuffled(len(names), dls.train.seed, dls.train.epoch - 1).tolist()]


def test_labels_with_fractions_are_amounts(tmp_path, folder):
    rows = [(folder / row[0], 0.25 * i) for i, row in enumerate(rows_of(folder)[:8])]
    dls = image_dls(write_csv(tmp_path / "t.csv", ("path", "label"), rows), 8, valid=0)
    assert sorted(all_of(dls.train)[1].tolist()) == [0.25 * i for i in range(8)]
    assert dls.pipeline.classes is None


@pytest.mark.parametrize(
    ("head", "options", "words"),
    [
        (
            ("path", "label"),
            {"labels": "labell"},
            "no column 'labell' of labels.*did you mean 'label'",
        ),
        (("where", "label"), {}, r"no column of images.*\['where', 'label'\].*paths="),
        (("path", "label"), {"paths": "pth"}, "no column 'pth'.*did you mean 'path'"),
    ],
)
def test_columns_that_are_not_there_are_named(tmp_path, head, options, words):
    path = write_csv(tmp_path / "t.csv", head, [("a.png", "x")])
    with pytest.raises(ValueError, match=words):
        image_dls(path, **options)


def test_columns_of_any_name_can_be_said(tmp_path, folder):
    rows = [(i, folder / row[0], row[1]) for i, row in enumerate(rows_of(folder))]
    path = write_csv(tmp_path / "t.csv", ("label", "where", "kind"), rows)
    dls = image_dls(path, paths="where", labels="kind")
    assert dls.pipeline.classes == list(CLASSES)
    assert image_dls(path, paths="where", labels="none").keys() == ["test"]


# ---- Hugging Face data sets ----


@pytest.fixture(scope="module")
def hub():
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["z", "a", "m"])}
    )
    columns = {"image": sample()[:30], "label": [i % 3 for i in range(30)]}
    ds = datasets.Dataset.from_dict(columns, features=features)
    return datasets.DatasetDict(train=ds.select(range(20)), validation=ds.select(range(20, 30)))


def test_hub_data_sets_give_the_batches_of_from_dd(hub, tmp_path, monkeypatch):
    ours, theirs = image_dls(hub, 4, channels=1), DataLoaders.from_dd(hub, 4)
    assert same_batches(ours, theirs)
    assert ours.pipeline.classes == ["z", "a", "m"]
    assert torch.equal(ours.mean, theirs.mean)
    hub.save_to_disk(tmp_path / "saved")
    hub["train"].to_parquet(tmp_path / "t.parquet")
    assert same_batches(image_dls(tmp_path / "saved", 4, channels=1), theirs)
    assert image_dls(tmp_path / "t.parquet", 4, channels=1).pipeline.classes == ["z", "a", "m"]
    asked = {}
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **kw: asked.update(args=args, **kw) or hub
    )
    assert same_batches(image_dls("hf:some/name:part", 4, channels=1), theirs)
    assert asked == {"args": ("some/name", "part"), "streaming": False}


def test_numbers_that_say_unlabelled_are_for_prediction(hub):
    ds = hub["validation"].map(lambda row: {"label": -1})
    assert all_of(image_dls({"test": ds}).test)[1].tolist() == [-1] * 10
    with pytest.raises(ValueError, match="10 of 10 images for train have no label"):
        image_dls({"train": ds}, splits={"valid": None})


def test_a_data_set_with_a_transform_of_its_own_is_sent_to_from_dd(hub):
    with pytest.raises(ValueError, match="transform of its own.*from_dd"):
        image_dls(hub.with_transform(lambda rows: rows))
    with pytest.raises(TypeError, match="a path, or.*Hugging Face.*got list"):
        image_dls({"train": [1, 2]})


# ---- classes and sizes ----


@pytest.mark.parametrize("as_file", [False, True])
def test_a_list_of_classes_says_their_order_and_which_are_used(folder, tmp_path, as_file):
    wanted = ["coat", "bag"]
    if as_file:
        wanted = tmp_path / "classes.txt"
        wanted.write_text("coat\nbag\n")
    with pytest.warns(UserWarning, match=r"not in classes= are left out: boot \(16\)"):
        dls = image_dls(folder, classes=wanted)
    assert dls.pipeline.classes == ["coat", "bag"]
    folders = [name.split("/")[1] for name in dls.filenames["valid"]]
    assert all_of(dls.valid)[1].tolist() == [int(name == "bag") for name in folders]


def test_classes_of_which_the_data_have_none_are_refused_with_what_is_near(folder):
    with pytest.raises(ValueError, match="no label.*in classes=.*did you mean 'bag'"):
        image_dls(folder, classes=["Bags"])


def test_images_of_another_size_get_that_of_most(folder, tmp_path):
    write_folder(tmp_path, 6, ("train",))
    sample()[0].resize((40, 30)).save(tmp_path / "train/bag/large.png")
    with pytest.warns(UserWarning, match=r"2 sizes \(28×28 to 30×40\); all get 28×28"):
        dls = image_dls(tmp_path, 2, valid=0)
    assert all_of(dls.train)[0].shape == (7, 3, 28, 28)
    assert all_of(image_dls(folder, size=(8, 12)).valid)[0].shape[2:] == (8, 12)
    assert image_dls(folder, size=10).pipeline.size == (10, 10)


def test_images_of_many_sizes_get_a_square_of_the_usual_side(tmp_path):
    for i in range(5):
        folder = tmp_path / CLASSES[i % 2]
        folder.mkdir(exist_ok=True)
        sample()[i].resize((20 + i, 300)).save(folder / f"{i}.png")
    with pytest.warns(UserWarning, match="5 sizes.*all get 22×22"):
        image_dls(tmp_path, 2, valid=0)


# ---- mistakes ----


def test_images_of_which_none_can_be_read_are_an_error_that_says_why(tmp_path):
    write_csv(tmp_path / "t.csv", ("path", "label"), [(f"{i}.png", i % 2) for i in range(20)])
    with pytest.raises(ValueError, match=r"none of 16 .* such as \d+.png \(no such file\)"):
        image_dls(tmp_path / "t.csv", seed=1)
    with pytest.raises(ValueError, match="16 of 16 images of 'train' could not be read"):
        image_dls(tmp_path / "t.csv", size=28)
    with (
        pytest.raises(ValueError, match="'train' data give no batch: 0 samples"),
        pytest.warns(UserWarning, match="16 of 16"),
    ):
        image_dls(tmp_path / "t.csv", size=28, max_errors=1.0)


@pytest.mark.parametrize("splits", [{"train": "trian"}, {"valid": "test"}])
def test_a_split_that_is_not_there_is_an_error_that_names_those_that_are(folder, splits):
    with pytest.raises(ValueError, match=r"no split '(trian|test)'.*\['train', 'valid'\]"):
        image_dls(folder, splits=splits)


def test_a_source_without_images_says_what_it_looked_for_and_found(tmp_path):
    (tmp_path / "inside").mkdir()
    with pytest.raises(ValueError, match=r"no images in .*\.jpg .*\.png.*found no files at all"):
        image_dls(tmp_path)
    for name in ("a.txt", "inside/b.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "inside/c").write_text("x")
    (tmp_path / ".hidden.png").write_text("x")
    with pytest.raises(ValueError, match=r"found 2 \.txt, 1 (hidden|no suffix), 1 "):
        image_dls(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no .*nowhere"):
        image_dls(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"a\.txt is no source of images"):
        image_dls(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": [0.5] * 3}, "mean and std go together"),
        ({"std": [0.5], "mean": [0.5] * 3}, "std has a value for each of 3 channels"),
        ({"channels": 4}, "channels is 3 for colours or 1 for grey, got 4"),
        ({"size": (3, 0)}, "height and width"),
        ({"on_error": "ignore"}, "on_error is skip or raise"),
        ({"max_errors": 10}, "max_errors is a fraction"),
        ({"valid": 20, "splits": None}, "valid is a fraction"),
    ],
)
def test_settings_out_of_range_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        image_dls(folder / "train", **options)


def test_images_outside_of_the_classes_are_named(tmp_path):
    write_folder(tmp_path, 6, ("train", "valid"))
    sample()[0].save(tmp_path / "train" / "stray.png")
    sample()[0].save(tmp_path / "loose.png")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        dls = image_dls(tmp_path, 2)
    said = " ".join(str(w.message) for w in found)
    assert "1 images lie in no class folder and are left out: train/stray.png" in said
    assert "outside of the folders of the splits and are left out: loose.png" in said
    assert len(dls.filenames["train"]) == 6


def test_images_of_one_class_alone_warn_that_another_may_be_missing(tmp_path):
    folder = write_folder(tmp_path, 24, splits=["train"]) / "train"
    one, *others = sorted(folder.iterdir())
    for file in (file for other in others for file in other.iterdir()):
        file.unlink()
    with pytest.warns(UserWarning, match=f"all images are of one class, '{one.name}'"):
        image_dls(folder)
