"""Find images with their labels and splits in a folder, an archive, a table or a data set.

No image is opened here.
"""

from __future__ import annotations

import os
import posixpath
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minilearn.base.arguments import VALID_SPLITS
from minilearn.base.files import user_path
from minilearn.base.text import few

from .archives import ARCHIVES, open_archive, read_member
from .hf_images import from_hub, is_saved, load_hub
from .listing import SUFFIXES, Columns, Items, read_file

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", *VALID_SPLITS)
SAME = {"training": "train", "testing": "test", "evaluation": "eval"}
# What systems and tools leave behind, besides names that begin with a dot, in small letters.
LITTER = ("__macosx", "@eadir", "@recycle", "#recycle", "$recycle.bin", "#snapshot", "lost+found")
LITTER += ("system volume information", "__pycache__")
TABLES = (".csv", ".tsv", ".parquet")
SPLIT, IS_VALID = "split", "is_valid"  # columns of a table that divide its rows
VALID_OR_NOT: dict[str, str] = dict.fromkeys(("true", "1", "1.0", "yes"), "valid")
VALID_OR_NOT |= dict.fromkeys(("false", "0", "0.0", "no"), "train")


def find_images(source: Any, columns: Columns, streaming: bool = False) -> dict[str, Any]:
    """Return `Items`, or an `ImageStream` for a stream, by split.

    Without splits, labelled images are all "train" and others all "test".

    Args:
        source: see `image_dls`.
        columns: the columns of a table or data set that the user named.
        streaming: read "hf:NAME" as a stream.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: it holds no images; says what was looked for, and what was found.
    """
    if isinstance(source, str) and source.startswith("hf:"):
        found = from_hub(load_hub(source[3:], streaming), columns)
    elif streaming:
        raise ValueError(f'streaming= is for "hf:NAME", and the source is {source!r:.80}')
    elif isinstance(source, (str, os.PathLike)):
        found = _from_path(user_path(source), columns)
    else:
        found = from_hub(source, columns)
    # only labelled images can be trained on
    return {
        split or ("train" if images.labelled else "test"): images for split, images in found.items()
    }


def _from_path(path: Path, columns: Columns) -> dict[str, Any]:
    """Return the images by split, "" where nothing says one."""
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}. Give a folder, an archive, a table, or hf:NAME for a data set of "
            "the Hugging Face hub"
        )
    if path.suffix.lower() in TABLES and path.is_file():
        return from_table(path, columns)
    if is_saved(path):
        return from_hub(load_hub(path), columns)
    for suffix in TABLES:  # the imagefolder layout of the library `datasets`
        if (path / f"metadata{suffix}").is_file():
            return from_table(path / f"metadata{suffix}", columns)
    if isinstance(columns.labels, str) and "(" in columns.labels:
        columns = replace(columns, labels=_from_file_name(columns.labels))
    named = [columns.paths, columns.labels, columns.groups]
    named += [] if callable(columns.labels) else [columns.sep]
    if any(isinstance(name, str) for name in named):
        raise ValueError(
            "paths=, labels=, groups= and sep= are for tables and data sets, and "
            f"{path} is neither; there labels= is a function of the path, or a pattern with a "
            "(group) in the file name, and groups= a function"
        )
    if path.is_dir():
        return from_folder(path, columns)
    if path.suffix.lower() in ARCHIVES and path.is_file():
        return from_archives([path], path, columns)
    raise ValueError(
        f"{path} is no source of images; that is a folder, an archive ({', '.join(ARCHIVES)}) "
        f"or a table ({', '.join(TABLES)}); a compressed .tar has to be decompressed first"
    )


def _from_file_name(pattern: str) -> Callable[[str], str | None]:
    """Return a function from a path to what the pattern's group matches in the file name."""
    try:
        search = re.compile(pattern).search
    except re.error as e:
        raise ValueError(f"labels={pattern!r} is no regular expression: {e}") from e
    return lambda path: (found := search(posixpath.basename(path))) and found[1]


# ---- folders and archives ----


def from_folder(folder: Path, columns: Columns) -> dict[str, Items]:
    """Find images below a folder; folder names give class and split."""
    start = len(os.path.join(folder, ""))
    files = {path[start:].replace(os.sep, "/"): path for path in _files_below(str(folder))}
    archives = [
        Path(file)
        for path, file in files.items()
        if path.lower().endswith(ARCHIVES) and "/" not in path and _kind(path) != "hidden"
    ]
    if archives and not any(_kind(path) in SUFFIXES for path in files):
        return from_archives(archives, folder, columns)
    return _by_layout([*files.items()], folder, read_file, 2, columns)


def from_archives(paths: Sequence[Path], source: Path, columns: Columns) -> dict[str, Items]:
    """Find images in archives like those below a folder; `train-0001.tar` is of split "train"."""
    archives, files = [open_archive(path) for path in paths], []
    for number, (path, archive) in enumerate(zip(paths, archives, strict=True)):
        first_word = re.split(r"[-_.]", path.name)[0]
        split = split_of(first_word) if len(paths) > 1 else None
        for name in sorted(archive.names):
            inside = name.replace("\\", "/").lstrip("/")  # some programs on Windows write "\"
            inside = posixpath.normpath(posixpath.join(split or "", inside))
            files.append((inside, (number, name)))
    return _by_layout(files, source, partial(read_member, archives), 1, columns)


def _files_below(folder: str, above: frozenset[str] = frozenset()) -> Iterable[str]:
    """Yield the paths of all files, in the order of their parts."""
    real = os.path.realpath(folder)
    if real in above:  # a link that leads back up
        return
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if os.path.isdir(entry.path):
            yield from _files_below(entry.path, above | {real})
        elif os.path.isfile(entry.path) or not os.path.exists(entry.path):  # a pipe would wait
            yield entry.path


def _kind(path: str) -> str:
    if any(part.startswith(".") or part.lower() in LITTER for part in path.split("/")):
        return "hidden"
    return posixpath.splitext(path)[1].lower() or "no suffix"


def _by_layout(
    files: Sequence[tuple[str, Any]], source: Path, fetch: Any, min_depth: int, columns: Columns
) -> dict[str, Items]:
    """Sort images into splits and classes by their folders.

    Args:
        files: for each file its path in the source, and what `fetch` takes to read it.
        source: where they are, for errors.
        fetch: reads a file.
        min_depth: a folder around all others is ignored only where this many parts of a path
            remain below it.
        columns: may have a function that gives the labels.
    """
    kinds = Counter(_kind(path) for path, _ in files)
    images = [file for file in files if _kind(file[0]) in SUFFIXES]
    if not images:
        seen = ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common(5))
        raise ValueError(
            f"no images in {source}: looked in it and all folders below for files of "
            f"{' '.join(SUFFIXES)}, and found {seen or 'no files at all'}"
        )
    paths = _without_wrapper([tuple(path.split("/")) for path, _ in images], min_depth)
    has_splits = _are_splits({parts[0] for parts in paths if len(parts) > 1})
    inner = {parts[1] for parts in paths if len(parts) > 2} if not has_splits else set()
    if _are_splits(inner) and "train" in map(split_of, inner) and not callable(columns.labels):
        warnings.warn(
            f"the folders {few(sorted(inner))} lie within those of the classes, and are no splits: "
            "for splits put the classes into them",
            stacklevel=2,
        )
    by_split: dict[str | None, list[tuple]] = {}
    for (path, ref), parts in zip(images, paths, strict=True):
        split = ""
        if has_splits:
            split = split_of(parts[0]) if len(parts) > 1 else None
            parts = parts[1:]
        label = columns.label(path, parts[0] if len(parts) > 1 else None)
        by_split.setdefault(split, []).append((path, ref, label))
    _warn_left_out(by_split.pop(None, []), "outside of the folders of the splits")
    found = {}
    for split, rows in by_split.items():
        labelled = [row for row in rows if row[2] is not None]
        if labelled and not callable(columns.labels):
            _warn_left_out([row for row in rows if row[2] is None], "in no class folder")
            rows = labelled
        found[split] = Items(*map(list, zip(*rows, strict=True)), fetch=fetch)
    return found


def _without_wrapper(paths: list[tuple[str, ...]], min_depth: int) -> list[tuple[str, ...]]:
    """Remove folders that hold all others, such as the one that an archive was made of."""
    while (
        len({parts[0] for parts in paths}) == 1
        and not split_of(paths[0][0])
        and all(len(parts) > min_depth for parts in paths)
    ):
        paths = [parts[1:] for parts in paths]
    return paths


def _are_splits(folders: set[str]) -> bool:
    """Return whether folders are splits: all of them, or train and another among others."""
    splits = {folder for folder in folders if split_of(folder)}
    with_train = len(splits) > 1 and "train" in map(split_of, splits)
    return bool(splits) and (splits == folders or with_train)


def split_of(folder: str) -> str | None:
    """Return the split that a folder is named after, in any case, as `Train` or `test_set`."""
    name = re.sub(r"[-_ ]?(set|data|images|imgs)$", "", folder.lower())
    name = SAME.get(name, name)
    return name if name in SPLITS else None


def _warn_left_out(rows: list[tuple], where: str) -> None:
    if rows:
        names = few([row[0] for row in rows])
        warnings.warn(f"{len(rows):,} images lie {where} and are left out: {names}", stacklevel=2)


# ---- tables ----


def from_table(path: Path, columns: Columns) -> dict[str, Any]:
    """Return `Items` by split; paths in the table are relative to its folder.

    Raises:
        ValueError: the table cannot be read, has no rows, or lacks a column.
    """
    from datasets import Dataset

    table = _read_table(path)
    head = table.column_names
    if twice := [name for name, n in Counter(head).items() if n > 1]:
        raise ValueError(f"{path} has several columns {twice[0]!r}; rename all but one")
    if table.num_rows == 0:
        raise ValueError(f"{path} has no rows below its header {head}")
    if any(name.lower().endswith(SUFFIXES) for name in head):
        raise ValueError(
            f"the first line of {path} names the columns, such as path,label, and here it is {head}"
        )
    ds, splits = Dataset(table), _splits_of_rows(table, path)
    by_split = {
        split: ds.select([row for row, other in enumerate(splits) if other == split])
        for split in dict.fromkeys(splits)
    }
    return from_hub(by_split or ds, columns, path)


def _read_table(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".parquet":
            return parquet.read_table(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.readline()
        parse = csv.ParseOptions(delimiter=max(",;\t|", key=head.count))
        with csv.open_csv(path, parse_options=parse) as reader:
            names = reader.schema.names
        types = dict.fromkeys(names, pa.string())  # "007" is a name, no number
        as_text = csv.ConvertOptions(column_types=types)
        table = csv.read_csv(path, parse_options=parse, convert_options=as_text)
        trimmed = [pc.call_function("utf8_trim_whitespace", [x]) for x in table.columns]
        return pa.table(trimmed, names)
    except pa.ArrowInvalid as e:
        raise ValueError(f"{path} cannot be read as a table, in UTF-8: {e}") from e


def _splits_of_rows(table: pa.Table, path: Path) -> list[str]:
    """Return the split of each row, nothing where no column names it."""
    lower = {name.lower().strip(): name for name in table.column_names}
    column = lower.get(SPLIT) or lower.get(IS_VALID)
    values = table[column].to_pylist() if column else []
    splits = ["" if value is None else str(value).strip().lower() for value in values]
    if SPLIT in lower:
        return [split_of(split) or split for split in splits]
    if unknown := set(splits) - VALID_OR_NOT.keys():
        raise ValueError(f"{path}: is_valid is true or false, got {few(sorted(unknown))}")
    return [VALID_OR_NOT[value] for value in splits]
