"""Odd folders, archives, tables and settings: read as they are meant, or named; nothing is lost."""

import io
import os
import shutil
import tarfile
import tempfile
import unicodedata
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import all_of, pixels, raw, sample
from PIL import Image

from minilearn import ArrayLoader, DataLoaders, Learner, TrainCB, fashion_mnist, image_dls
from minilearn.data.images import find, labels


def png(i: int) -> bytes:
    file = io.BytesIO()
    sample()[i].save(file, "PNG")
    return file.getvalue()


FILES = {f"{c}/{i}.png": png(i) for c in "ab" for i in range(4)}


def write(folder, files=FILES):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def names_of(source, **options):
    return sorted(image_dls(source, 2, valid=0, **options).filenames["train"])


# ---- folders ----


def test_hidden_files_and_other_litter_are_no_images(tmp_path):
    litter = (
        ".DS_Store",
        "a/._0.png",
        "a/Thumbs.db",
        ".ipynb_checkpoints/0.png",
        "__MACOSX/a/0.png",
    )
    write(tmp_path / ".data", FILES | dict.fromkeys(litter, b"x"))  # the root itself may be hidden
    (tmp_path / ".data" / "empty class").mkdir()
    (tmp_path / ".data" / "b" / "folder.png").mkdir()
    dls = image_dls(tmp_path / ".data", 2, valid=0)
    assert (sorted(dls.filenames["train"]), dls.pipeline.classes) == (sorted(FILES), ["a", "b"])


def test_links_are_followed_as_often_as_they_stand_and_never_in_a_circle(tmp_path):
    write(tmp_path / "real")
    linked = tmp_path / "linked"
    for split in ("train", "valid"):
        linked.mkdir(exist_ok=True)
        (linked / split).symlink_to(tmp_path / "real")
    (tmp_path / "real" / "a" / "up").symlink_to(tmp_path / "real")
    dls = image_dls(linked, 2)
    assert [len(names) for names in dls.filenames.values()] == [8, 8]
    (tmp_path / "real" / "c").symlink_to(tmp_path / "real" / "b")
    assert image_dls(tmp_path / "real", 2).pipeline.classes == ["a", "b", "c"]


def test_classes_may_have_any_name_and_folders_within_them(tmp_path):
    odd = ("Ä ö", "cat", "Cat", "x.png", "10", "9", "test", "日本/deeper")
    write(tmp_path, {f"{c}/{i} é.PNG": png(i) for c in odd for i in range(2)})
    dls = image_dls(tmp_path, 2, valid=0)
    assert dls.pipeline.classes == ["9", "10", "Cat", "cat", "test", "x.png", "Ä ö", "日本"]
    assert len(dls.filenames["train"]) == 16


def test_classes_that_no_training_image_has_are_named(tmp_path):
    write(tmp_path, {f"train/{name}": data for name, data in FILES.items()})
    write(tmp_path, {"valid/a/0.png": png(0), "valid/B/0.png": png(1)})
    with pytest.warns(UserWarning, match="no training image has these classes of 'valid': B"):
        image_dls(tmp_path, 2)


def test_splits_that_are_not_used_are_named(tmp_path):
    for split in ("train", "val", "dev"):
        write(tmp_path / split)
    with pytest.warns(UserWarning, match=r"splits that are not used: \['dev'\]"):
        image_dls(tmp_path, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image_dls(tmp_path, 2, splits={"valid": "dev"})


# ---- F22, F04: odd names ----

ODD = [
    "--5",
    "-",
    "-1",
    "01",
    "1e5",
    "nan",
    "inf",
    "0x10",
    "0.5",
    "1_000",
    "²",
    "٣",
    "$x^$",
    "9" * 60,
]


@pytest.mark.case("F04")
@pytest.mark.parametrize("name", ODD)
def test_a_class_folder_may_be_called_like_anything(tmp_path, name):
    write(tmp_path, {f"{c}/{i}.png": png(i) for c in (name, "1") for i in range(2)})
    assert set(image_dls(tmp_path, 2, valid=0).pipeline.classes) == {name, "1"}


@pytest.mark.case("F04")
def test_names_that_look_like_fractions_would_be_noticed():
    with pytest.raises(ValueError, match="could not convert"):
        sorted(ODD, key=lambda name: float(name) if name.lstrip("-").isdecimal() else 0)


def check_one_class(folder):
    dls = image_dls(folder, 2, valid=0)
    assert dls.pipeline.classes == ["café", "tea"]
    assert set(all_of(dls.train)[1].tolist()) == set(all_of(dls.valid)[1].tolist()) == {0, 1}


@pytest.fixture
def two_forms(tmp_path):
    for split, form in (("train", "NFC"), ("valid", "NFD")):
        names = [
            f"{split}/{unicodedata.normalize(form, c)}/{i}.png"
            for c in ("café", "tea")
            for i in "12"
        ]
        write(tmp_path, {name: png(1) for name in names})
    return tmp_path


@pytest.mark.case("F22")
def test_a_class_in_two_unicode_forms_is_one_class(two_forms):
    check_one_class(two_forms)
    decomposed = unicodedata.normalize("NFD", "café")
    for classes in (["café", "tea"], [decomposed, "tea"]):
        dls = image_dls(two_forms, 2, classes=classes)
        assert len(dls.filenames["train"]) == len(dls.filenames["valid"]) == 4
        assert dls.pipeline.classes == ["café", "tea"]


@pytest.mark.case("F22")
def test_the_check_notices_two_classes_that_look_alike(two_forms, monkeypatch):
    monkeypatch.setattr(labels, "as_text", str)
    with pytest.warns(UserWarning, match="no training image"), pytest.raises(AssertionError):
        check_one_class(two_forms)


@pytest.mark.case("F22")
@pytest.mark.parametrize("valid", ["eval", "Val", "VALID", "Dev", "TEST", "Testing", "evaluation"])
@pytest.mark.parametrize("train", ["train", "TRAIN", "Training"])
def test_folders_of_splits_are_no_classes(tmp_path, train, valid):
    for split in (train, valid):
        write(tmp_path / split)
    dls = image_dls(tmp_path, 2)
    assert dls.pipeline.classes == ["a", "b"]
    assert len(dls.filenames["train"]) == len(dls.filenames["valid"]) == 8


@pytest.mark.case("F22")
@pytest.mark.parametrize("others", [(), ("train",), ("test",)])
def test_training_can_be_left_out(tmp_path, others):
    for split in ("val", *others):
        write(tmp_path / split)
    dls = image_dls(tmp_path, 2, splits={"train": None, "valid": "val"})
    assert dls.keys() == ["valid", *[name for name in others if name == "test"]]
    assert dls.pipeline.classes == ["a", "b"] and dls.pipeline.mean is not None


@pytest.mark.case("F22")
def test_what_systems_leave_behind_is_no_class_and_no_image(tmp_path):
    check_no_litter(
        tmp_path, ["@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX", ".ipynb_checkpoints"]
    )
    odd = ["$Recycle.Bin", "System Volume Information", "lost+found", "#snapshot", "__pycache__"]
    check_no_litter(tmp_path, [*odd, ".Trash-1000", ".git", ".AppleDouble"])


@pytest.mark.case("F22")
def test_the_check_notices_a_folder_that_is_none_of_them(tmp_path):
    with pytest.raises(AssertionError):
        check_no_litter(tmp_path, ["@someone"])


def check_no_litter(folder, names):
    write(folder)
    for name in names:
        write(folder, {f"{name}/a/0.png": png(0), f"a/{name}/0.png@thumb.jpg": png(0)})
    dls = image_dls(folder, 2, valid=0)
    assert (sorted(dls.filenames["train"]), dls.pipeline.classes) == (sorted(FILES), ["a", "b"])


@pytest.mark.case("F22")
@settings(max_examples=40, deadline=None)
@given(
    st.sets(
        st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
        .map(labels.as_text)
        .filter(lambda name: name[0] != "." and len(os.fsencode(name)) < 250)
        .filter(lambda name: find.split_of(name) is None and name.lower() not in find.LITTER),
        min_size=2,
        max_size=5,
    )
)
def test_folders_of_any_names_are_the_classes(names):
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {f"{name}/{i}.png": png(i) for name in names for i in range(2)})
        dls = image_dls(folder, 4, valid=0)
        found = [dls.pipeline.classes[y] for y in all_of(dls.train)[1].tolist()]
    assert set(dls.pipeline.classes) == names and Counter(found) == dict.fromkeys(names, 2)


@pytest.mark.case("F22")
@pytest.mark.parametrize(
    "names",
    [
        ("train_set", "test_set"),
        ("TrainSet", "ValidSet"),
        ("train-images", "val-images"),
        ("train data", "dev data"),
        ("training_data", "validation"),
        ("trainset", "testset"),
        ("Train", "TEST_IMGS"),
    ],
)
def test_splits_may_be_called_sets(tmp_path, names):
    for split in names:
        write(tmp_path / split)
    dls = image_dls(tmp_path, 2)
    assert dls.pipeline.classes == ["a", "b"]
    assert len(dls.filenames["train"]) == len(dls.filenames["valid"]) == 8


@pytest.mark.case("F22")
@pytest.mark.parametrize(
    "classes", [("test", "control"), ("valid", "invalid"), ("train", "bus"), ("offset", "onset")]
)
def test_classes_may_be_called_as_splits(tmp_path, classes):
    write(tmp_path, {f"{c}/{i}.png": png(i) for c in classes for i in range(2)})
    assert image_dls(tmp_path, 2, valid=0).pipeline.classes == sorted(classes)


@pytest.mark.case("F22")
@pytest.mark.parametrize("more", [(), ("other/readme.png",)])
@pytest.mark.parametrize("form", ["{0}/{1}", "images/{1}/{0}"])
def test_splits_within_classes_are_named(tmp_path, form, more):
    names = [form.format(c, s) for c in "ab" for s in ("train", "val")]
    write(tmp_path, {f"{name}/0.png": png(0) for name in names} | dict.fromkeys(more, png(0)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        image_dls(tmp_path, 2, valid=0)
    wrong = form[0] == "{" or bool(more)  # a folder around all others is no class
    assert any("lie within those of the classes" in str(w.message) for w in caught) == wrong


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.case("F36")
@pytest.mark.parametrize("how", [{}, {"memory_gb": 0}])
def test_pipes_and_links_in_a_circle_hold_nothing_up(tmp_path, how):
    write(tmp_path)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "link.png").symlink_to(tmp_path / "a" / "pipe.png")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    assert names_of(tmp_path, **how) == sorted(FILES)
    os.mkfifo(tmp_path / "a.zip")
    with pytest.raises(ValueError, match="is no source of images"):
        image_dls(tmp_path / "a.zip", 2)


def test_a_folder_may_begin_with_the_sign_for_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "~mine$")
    assert names_of("~mine$") == sorted(FILES)


def test_a_name_that_is_twice_in_an_archive_is_one_file(tmp_path):
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        warnings.simplefilter("ignore")
        for name, data in [*FILES.items(), ("a/0.png", png(7))]:
            file.writestr(name, data)
    assert names_of(tmp_path / "a.zip") == sorted(FILES)


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_a_label_that_is_not_known_is_none_in_any_form(tmp_path, missing):
    write(tmp_path)
    with pytest.raises(ValueError, match=r"1 of . images for train have no label: a/0\.png"):
        image_dls(tmp_path, 2, labels=lambda path: missing if path == "a/0.png" else path[0])


@pytest.mark.case("F22")
def test_classes_are_in_natural_order(tmp_path):
    expected = ["-2", "3", "20", "class1b", "class2", "class2b", "class10", "x1y2", "x1y10"]
    write(tmp_path, {f"{c}/0.png": png(0) for c in reversed(expected)})
    assert image_dls(tmp_path, 2, valid=0).pipeline.classes == expected != sorted(expected)


# ---- archives ----


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def write_tar(path, links=()):
    with tarfile.open(path, "w") as tar:
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, kind, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return path


def test_folders_and_litter_in_an_archive_are_passed_over(tmp_path):
    litter = {"top/": b"", "top/c/": b"", "__MACOSX/top/a/._0.png": b"x", "top/a/.DS_Store": b"x"}
    files = {f"top/{name}": data for name, data in FILES.items()}
    path = write_zip(tmp_path / "a b.zip", litter | files)
    assert names_of(path) == sorted(files)
    windows = {name.replace("/", "\\"): data for name, data in FILES.items()}
    assert image_dls(write_zip(tmp_path / "w.zip", windows), 2).pipeline.classes == ["a", "b"]


@pytest.mark.parametrize("how", [{}, {"memory_gb": 0}, {"memory_gb": 0, "workers": 2}])
def test_a_corrupt_file_in_an_archive_is_an_error_like_any(tmp_path, how):
    path = write_zip(tmp_path / "a.zip", FILES)
    data = bytearray(path.read_bytes())
    data[data.find(FILES["a/1.png"]) + 60] ^= 255
    path.write_bytes(data)
    dls = image_dls(path, 2, valid=0, max_errors=1 / 8, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sum(len(y) for _, y in dls.train) == 7
    assert dls.summary().errors["train"].keys() == {"a/1.png"}


def test_links_in_an_archive_are_the_files_they_lead_to(tmp_path):
    links = [
        ("b/hard.png", tarfile.LNKTYPE, "a/0.png"),
        ("b/soft.png", tarfile.SYMTYPE, "../a/0.png"),
        ("b/gone.png", tarfile.SYMTYPE, "nowhere.png"),
    ]
    path = write_tar(tmp_path / "a.tar", links)
    assert names_of(path) == sorted([*FILES, "b/hard.png", "b/soft.png"])
    dls = image_dls(path, 20, valid=0, normalize=False)
    (row,) = [i for i, name in enumerate(dls.filenames["train"]) if name == "b/soft.png"]
    assert torch.equal(dls.train.columns["image"][row], pixels(sample()[0].convert("RGB")))


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_an_archive_that_was_cut_off_is_named_and_not_read_in_part(tmp_path, suffix, left):
    path = tmp_path / f"a{suffix}"
    if suffix == ".zip":
        write_zip(path, FILES)
    else:
        write_tar(path)
    data = path.read_bytes()
    size = data.find(b"b/0.png") if suffix == ".tar" else len(data)
    cuts = [int(size * left) | 1]
    if suffix == ".tar":  # in a header, which Python's tarfile takes for the end
        cuts.append(size + int(512 * left))
    for cut in cuts:
        path.write_bytes(data[:cut])
        with pytest.raises(ValueError, match="is no archive, or a corrupt one"):
            image_dls(path, 2, valid=0)


# ---- tables ----


@pytest.fixture
def table(tmp_path):
    write(tmp_path)

    def make(*rows, head="path,label", name="t.csv", encoding="utf-8"):
        text = "\n".join([*([head] if head else []), *rows]) + "\n"
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    return make


ROWS = [f"{name},{name[0]}" for name in FILES]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row,
        lambda row: row.replace(",", ";"),
        lambda row: row.replace(",", "\t"),
        lambda row: row.replace(",", "|"),
        lambda row: row.replace("/", "\\"),
        lambda row: row.replace(",", " , "),
        lambda row: row + "\r",
        lambda row: f'"./{row.split(",")[0]}","{row.split(",")[1]}"' if "." in row else row,
    ],
    ids=["plain", "semicolons", "tabs", "bars", "Windows", "spaces", "Windows lines", "quoted"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_tables_as_programs_write_them(table, change, encoding):
    head, *rows = map(change, ["path,label", *ROWS])
    dls = image_dls(table(*rows, head=head, encoding=encoding), 2, valid=0)
    assert (len(dls.filenames["train"]), dls.pipeline.classes) == (8, ["a", "b"])
    assert dls.train.dataset.targets.tolist() == [0] * 4 + [1] * 4


def test_a_comma_in_a_path_or_label_may_be_quoted(table, tmp_path):
    shutil.copy(tmp_path / "a/0.png", tmp_path / "with, comma.png")
    path = table(*ROWS, '"with, comma.png","one, two"')
    assert image_dls(path, 2, valid=0).pipeline.classes == ["a", "b", "one, two"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": ""}, r"first line of .*t\.csv names the columns, such as path,label"),
        ({"head": "label,label"}, "several columns 'label'"),
        ({"encoding": "utf-16"}, "cannot be read as a table, in UTF-8"),
    ],
)
def test_tables_of_another_form_say_what_is_wrong(table, options, words):
    with pytest.raises(ValueError, match=words):
        image_dls(table(*ROWS, **options))


def test_files_that_are_there_twice_are_named_where_validation_is_drawn(table):
    path = table(*ROWS, *ROWS)
    with pytest.warns(UserWarning, match="8 images are there more than once"):
        image_dls(path, 2, valid=0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(image_dls(path, 2, valid=0).filenames["train"]) == 16  # twice on purpose
        dls = image_dls(path, 2, valid=0.25, groups="path")
    assert not {*dls.filenames["train"]} & {*dls.filenames["valid"]}


def test_a_row_without_a_path_or_label_is_named(table):
    with pytest.raises(ValueError, match="no path in row 9, column 'path'"):
        image_dls(table(*ROWS, " ,a"))
    with pytest.raises(ValueError, match="1 of 9 images for train have no label: a/0.png"):
        image_dls(table(*ROWS, "a/0.png,"), valid=0)


def test_splits_in_a_table_may_be_spelt_in_many_ways(table):
    for head, train, valid in (
        ("Split", " Train", "VALIDATION "),
        ("split", "Training", "dev"),
        ("is_valid", "False", "True"),
        ("is_valid", "0.0", "1.0"),
    ):
        rows = [f"{row},{valid if i % 2 else train}" for i, row in enumerate(ROWS)]
        dls = image_dls(table(*rows, head=f"path,label,{head}"), 2)
        assert [len(names) for names in dls.filenames.values()] == [4, 4]
    with pytest.raises(ValueError, match="is_valid is true or false, got perhaps"):
        image_dls(table(f"{ROWS[0]},perhaps", head="path,label,is_valid"))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([1, 0] * 4, ["0", "1"]),
        ([1.0, 0.0] * 4, ["0", "1"]),
        ([True, False] * 4, ["0", "1"]),
        (pd.Categorical(["b", "a"] * 4), ["a", "b"]),
        ([["b"], ["a", "b"]] * 4, ["a", "b"]),
    ],
)
def test_labels_of_parquet_may_be_of_any_type(tmp_path, labels, classes):
    write(tmp_path)
    pd.DataFrame({"path": list(FILES), "label": labels}).to_parquet(tmp_path / "t.parquet")
    dls = image_dls(tmp_path / "t.parquet", 2, valid=0)
    assert dls.pipeline.classes == classes
    y = dls.train.dataset.targets
    assert y[:2].tolist() == ([[0, 1], [1, 1]] if y.dim() == 2 else [1, 0])


def test_images_in_a_table_have_names_that_can_be_read(tmp_path):
    plain = pd.DataFrame({"image": list(FILES.values()), "label": [0, 1] * 4})
    named = plain.assign(image=[{"bytes": data, "path": name} for name, data in FILES.items()])
    for frame, names in ((plain, [f"train[{i}]" for i in range(8)]), (named, list(FILES))):
        frame.to_parquet(tmp_path / "t.parquet")
        found = image_dls(tmp_path / "t.parquet", 2, valid=0).filenames["train"]
        assert [name.replace("row", "train") for name in found] == names


# ---- images ----


@pytest.mark.filterwarnings("error:images are of")
@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
def test_all_eight_orientations_are_seen_upright(tmp_path, suffix):
    grey = sample()[1].resize((28, 20))
    upright = Image.merge("RGB", [grey, grey.rotate(180), Image.new("L", grey.size, 99)])
    stored = [
        None,
        0,
        3,
        1,
        5,
        2,
        6,
        4,
    ]  # what was done to the image (PIL's numbers): its inverse
    for number, change in enumerate(stored, start=1):
        exif = Image.Exif()
        exif[0x0112] = number
        image = upright if change is None else upright.transpose(change)
        image.save(tmp_path / f"{number}.{suffix}", exif=exif, **LOSSLESS.get(suffix, {}))
    dls = image_dls(tmp_path, 8, normalize=False)
    assert dls.pipeline.size == (20, 28)
    assert all(torch.equal(x, pixels(upright)) for x in raw(dls, "test"))


LOSSLESS = {"webp": {"lossless": True}}


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_of_an_animated_image_the_first_frame_is_seen(tmp_path, suffix):
    first = sample()[1].convert("RGB")
    options = {"save_all": True, "append_images": [first.rotate(90)], **LOSSLESS.get(suffix, {})}
    first.save(tmp_path / f"a.{suffix}", **options)
    assert torch.equal(raw(image_dls(tmp_path, normalize=False), "test")[0], pixels(first))


# ---- epochs and settings ----


@pytest.mark.parametrize("how", [{}, {"memory_gb": 0}, {"memory_gb": 0, "workers": 2}])
def test_predictions_stand_beside_the_names_of_their_files(tmp_path, how):
    write(tmp_path / "train")
    trained = image_dls(tmp_path / "train", 2)
    flat = write(tmp_path / "flat", {f"{i}.png": png(i) for i in range(9)})
    (flat / "0.png").write_bytes(b"")
    (flat / "4.png").write_bytes(b"x")
    dls = image_dls(flat, 4, pipeline=trained.pipeline, max_errors=2 / 9, **how)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 28 * 28, 2))
    learn = Learner(model, dls, torch.nn.functional.cross_entropy, cbs=TrainCB())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        preds, targs = learn.get_preds("test")
    assert dls.filenames["test"] == [f"{i}.png" for i in (1, 2, 3, 5, 6, 7, 8)]
    one_by_one = torch.stack([trained.pipeline(flat / n) for n in dls.filenames["test"]])
    torch.testing.assert_close(preds, model(one_by_one).detach())
    assert targs.tolist() == [-1] * 7


@pytest.mark.parametrize("memory_gb", [2.0, 0.0])
def test_a_batch_may_be_larger_than_the_set_unless_it_has_to_be_full(tmp_path, memory_gb):
    write(tmp_path)
    assert len(all_of(image_dls(tmp_path, 100, valid=0, memory_gb=memory_gb).train)[1]) == 8
    sizes = [len(y) for _, y in image_dls(tmp_path, 3, valid=0, drop_last=True).train]
    assert sizes == [3, 3]
    with pytest.raises(ValueError, match="no batch: 8 samples, batch size 100, drop_last=True"):
        image_dls(tmp_path, 100, valid=0, drop_last=True, memory_gb=memory_gb)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bs": 0}, "is a number of items, 1 or more; got 0"),
        ({"bs": 2.5}, "is a number of items, 1 or more; got 2.5"),
        ({"workers": -1}, "workers is a number of processes, 0 or more; got -1"),
        ({"size": "28"}, "height and width, got 28"),
        ({"size": 28.0}, "height and width, got 28.0"),
        ({"classes": []}, "classes= is empty"),
        ({"classes": {"a": 1, "b": 0}}, "a list of names; rename labels by a function"),
        ({"splits": {"training": "train"}}, "keys train, valid, test, got training"),
        ({"labels": "none"}, "are for tables and data sets"),
        ({"sep": " "}, "are for tables and data sets"),
        ({"streaming": True}, 'streaming= is for "hf:NAME"'),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        image_dls(write(tmp_path), **options)


def test_loaders_of_any_data_refuse_a_batch_of_nothing():
    for bs in (0, -1):
        with pytest.raises(ValueError, match="(batch_size|bs) is a number of items, 1 or more"):
            DataLoaders.from_arrays(torch.zeros(10, 1), torch.zeros(10), bs=bs)
        with pytest.raises(ValueError, match="(batch_size|bs) is a number of items, 1 or more"):
            ArrayLoader({"x": torch.zeros(10)}, bs)
    with pytest.raises(ValueError, match="num_workers is a number of processes, 0 or more"):
        DataLoaders.from_dd(fashion_mnist(), 64, num_workers=-1)
