"""Find pictures, with their labels and splits, in a folder, an archive or what else holds some.

No picture is opened here.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..hf_datasets import VALID_SPLITS
from .archives import Members, is_archive, open_archive
from .hf_images import from_hub, is_saved, load_hub
from .items import SUFFIXES, Columns, Items, read_file, shortened
from .tables import TABLES, from_table

SPLITS = ("train", *VALID_SPLITS)
LIKE_TRAIN = {"training": "train"}


def find_pictures(source: Any, columns: Columns, streaming: bool = False) -> dict[str, Any]:
    """Return `Items` (of streams, data sets of `datasets`) by split.

    What has no splits is all "train" where pictures have labels, else all "test".

    Args:
        source: see `image_dls`.
        columns: which columns of a table or data set hold what.
        streaming: read "hf:NAME" as a stream.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: it holds no pictures; says what was looked for, and what was found.
    """
    if isinstance(source, str) and source.startswith("hf:"):
        return from_hub(load_hub(source[3:], streaming), columns)
    if streaming:
        raise ValueError(f'streaming= is for "hf:NAME", and the source is {source!r:.80}')
    if not isinstance(source, (str, os.PathLike)):
        return from_hub(source, columns)
    path = Path(source).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}. Give a folder, an archive, a table, or hf:NAME for a data set of "
            "the Hugging Face hub"
        )
    return _found_in(path, columns)


def _found_in(path: Path, columns: Columns) -> dict[str, Any]:
    if path.suffix.lower() in TABLES and path.is_file():
        return from_table(path, columns)
    if is_saved(path):
        return from_hub(load_hub(path), columns)
    for suffix in TABLES:  # as the library `datasets` has them in its imagefolder
        if (path / f"metadata{suffix}").is_file():
            return from_table(path / f"metadata{suffix}", columns)
    if columns != Columns():
        raise ValueError(
            f"paths=, labels= and sep= are for tables and data sets; {path} is neither"
        )
    if path.is_dir():
        return from_folder(path)
    if is_archive(path):
        return from_archives([path], path)
    raise ValueError(
        f"{path} is no source of pictures; that is a folder, an archive (.tar, .tar.gz, .zip) "
        f"or a table ({', '.join(TABLES)})"
    )


# ---- folders and archives ----


@dataclass(frozen=True)
class Entry:
    """A file: its path in the source, where it is read, and its label if that is known."""

    path: PurePosixPath
    ref: Any
    label: str | None = None


def from_folder(folder: Path) -> dict[str, Items]:
    """Find pictures below a folder; class and split are the names of folders."""
    files = sorted(_files_below(folder))
    inside = [PurePosixPath(path.relative_to(folder).as_posix()) for path in files]
    archives = [path for path in files if path.parent == folder and is_archive(path)]
    if archives and not any(_is_picture(path) for path in inside):
        return from_archives(archives, folder)
    entries = [Entry(path, str(file)) for path, file in zip(inside, files, strict=True)]
    return by_layout(_pictures(entries, folder), read_file, n_above=2)


def from_archives(paths: Sequence[Path], source: Path) -> dict[str, Items]:
    """Find pictures in archives, as below a folder; `train-0001.tar` is of the split "train".

    Labels may also stand beside the pictures, in files .cls (WebDataset). Where nothing inside says
    a label, `cats.zip` and `dogs.zip`, or `train-cats.zip`, are of the classes that they are named
    after; names with a number are parts of one set.
    """
    members = Members([open_archive(path) for path in paths])
    labels = members.labels()
    entries, classes = [], []
    for number, archive in enumerate(members.archives):
        split, name_of_class = _split_and_class(archive.path)
        classes.append(name_of_class)
        for name in sorted(archive.names):
            path = PurePosixPath(name.replace("\\", "/"))  # some programs on Windows write such
            label = labels.get((number, path.with_suffix("")))
            above = (split,) if split and len(paths) > 1 else ()
            inside = PurePosixPath(*above, *(part for part in path.parts if part != "/"))
            entries.append(Entry(inside, (number, name), label))
    entries = _pictures(entries, source)
    found = by_layout(entries, members, n_above=1)
    if len(set(classes)) < 2 or None in classes or any(x.labelled for x in found.values()):
        return found
    entries = [replace(entry, label=classes[entry.ref[0]]) for entry in entries]
    return by_layout(entries, members, n_above=1)


def _split_and_class(archive: Path) -> tuple[str | None, str | None]:
    """Return the split and the class in the name of an archive, None for what it does not say."""
    stem = re.sub(r"\.(tar(\.\w+)?|tgz|zip)$", "", archive.name, flags=re.IGNORECASE)
    first, *rest = re.split(r"[-_.]", stem, maxsplit=1)
    split = _split_of(first)
    name = stem if split is None else "".join(rest)
    return split, name if name and not re.search(r"\d", name) else None


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterable[Path]:
    real = folder.resolve()
    if real in above:  # a link that leads back up
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files_below(path, above | {real})
        else:
            yield path


def _is_picture(path: PurePosixPath) -> bool:
    return _kind(path) in SUFFIXES


def _kind(path: PurePosixPath) -> str:
    if any(part.startswith((".", "__MACOSX")) for part in path.parts):
        return "hidden"
    return path.suffix.lower() or "no suffix"


def _pictures(entries: list[Entry], source: Path) -> list[Entry]:
    found = [entry for entry in entries if _is_picture(entry.path)]
    if not found:
        others = Counter(_kind(entry.path) for entry in entries)
        seen = ", ".join(f"{n:,} {kind}" for kind, n in others.most_common(5))
        raise ValueError(
            f"no pictures in {source}: looked in it and all folders below for files of "
            f"{' '.join(SUFFIXES)}, and found {seen or 'no files at all'}"
        )
    return found


def by_layout(entries: list[Entry], fetch: Any, n_above: int) -> dict[str, Items]:
    """Sort pictures into splits and classes by the folders that they lie in.

    Args:
        entries: the pictures.
        fetch: reads one by its `ref`.
        n_above: how many folders must be left when a folder around all others is taken off.
    """
    paths = _without_wrapper([entry.path.parts for entry in entries], n_above)
    has_splits = _are_splits({parts[0] for parts in paths if len(parts) > 1})
    table: dict[str, list[tuple[Entry, str | None]]] = {}
    outside = []
    for entry, parts in zip(entries, paths, strict=True):
        split = _split_of(parts[0]) if has_splits and len(parts) > 1 else None
        inner = parts[1:] if split else parts
        if has_splits and not split:
            outside.append(str(entry.path))
            continue
        label = entry.label or (inner[0] if len(inner) > 1 else None)
        table.setdefault(split or "", []).append((entry, label))
    if outside:
        _warn_left_out(outside, "outside of the folders of the splits")
    found = {split: _items(rows, fetch) for split, rows in table.items()}
    if "" in found:
        found = {"train" if found[""].labelled else "test": found[""]}
    return found


def _without_wrapper(paths: list[tuple[str, ...]], n_above: int) -> list[tuple[str, ...]]:
    """Take off folders that hold all others, such as the one that an archive was made of."""
    while (
        len({parts[0] for parts in paths}) == 1
        and not _split_of(paths[0][0])
        and all(len(parts) > n_above for parts in paths)
    ):
        paths = [parts[1:] for parts in paths]
    return paths


def _are_splits(folders: set[str]) -> bool:
    """Return whether folders are splits: all of them, or train and another among others."""
    splits = {folder for folder in folders if _split_of(folder)}
    with_train = len(splits) > 1 and "train" in map(_split_of, splits)
    return bool(splits) and (splits == folders or with_train)


def _split_of(folder: str) -> str | None:
    name = LIKE_TRAIN.get(folder.lower(), folder.lower())
    return name if name in SPLITS else None


def _items(rows: list[tuple[Entry, str | None]], fetch: Any) -> Items:
    labelled = [row for row in rows if row[1] is not None]
    if labelled and len(labelled) < len(rows):
        _warn_left_out([str(e.path) for e, label in rows if label is None], "in no class folder")
        rows = labelled
    return Items(
        [str(entry.path) for entry, _ in rows],
        [entry.ref for entry, _ in rows],
        [label for _, label in rows],
        fetch,
    )


def _warn_left_out(names: list[str], where: str) -> None:
    warnings.warn(
        f"{len(names):,} pictures lie {where} and are left out: {shortened(names)}", stacklevel=2
    )
