"""Pictures whose paths and labels stand in a table: .csv, .tsv or .parquet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hf_images import from_hub
from .items import SUFFIXES, Columns, Items, read_file, shortened

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".tsv", ".parquet")
SPLIT = "split"  # a column that names the split of each row
IS_VALID = "is_valid"  # or one that says whether it is for validation
VALID_OR_NOT: dict[str, str] = dict.fromkeys(("true", "1", "1.0", "yes"), "valid")
VALID_OR_NOT |= dict.fromkeys(("false", "0", "0.0", "no"), "train")


def from_table(path: Path, columns: Columns) -> dict[str, Any]:
    """Return `Items` by split; paths in the table are relative to its folder.

    Raises:
        ValueError: the table cannot be read, has no rows, or lacks a column.
    """
    table = _read(path)
    twice = [name for name, n in Counter(table.column_names).items() if n > 1]
    if twice:
        raise ValueError(f"{path} has several columns {twice[0]!r}; rename all but one")
    if table.num_rows == 0:
        raise ValueError(f"{path} has no rows below its header {table.column_names}")
    if any(name.lower().endswith(SUFFIXES) for name in table.column_names):
        raise ValueError(
            f"the first line of {path} names the columns, such as path,label, and here it is "
            f"{table.column_names}"
        )
    key = columns.find_paths(table.column_names)
    if _holds_pictures(table.schema.field(key)):
        from datasets import Dataset

        return from_hub(Dataset(table), columns)
    names = [str(_stripped(name) or "") for name in table[key].to_pylist()]
    if "" in names:
        raise ValueError(f"{path} has no path in row {names.index('') + 1}, column {key!r}")
    label = columns.find_labels([name for name in table.column_names if name != key])
    labels = map(_stripped, table[label].to_pylist() if label else [None] * len(names))
    labels = [columns.several(None if x == "" and columns.sep is None else x) for x in labels]
    refs = [str(path.parent / name) for name in names]
    return _by_split(table, Items(names, refs, labels, read_file), path)


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".parquet":
            return parquet.read_table(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.readline()
        parse = csv.ParseOptions(delimiter=max(",;\t", key=head.count))
        with csv.open_csv(path, parse_options=parse) as reader:
            names = reader.schema.names
        as_text = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string())
        )  # "007" is a name
        return csv.read_csv(path, parse_options=parse, convert_options=as_text)
    except pa.ArrowInvalid as e:
        raise ValueError(f"{path} cannot be read as a table, in UTF-8: {e}") from e


def _holds_pictures(field: pa.Field) -> bool:
    return str(field.type).startswith("struct") or "binary" in str(field.type)


def _stripped(x: Any) -> Any:
    return x.strip() if isinstance(x, str) else x


def _by_split(table: pa.Table, items: Items, path: Path) -> dict[str, Items]:
    lower = {name.lower().strip(): name for name in table.column_names}
    column = lower.get(SPLIT) or lower.get(IS_VALID)
    values = table[column].to_pylist() if column else []
    splits = ["" if value is None else str(value).strip().lower() for value in values]
    if column and SPLIT not in lower:
        if unknown := set(splits) - VALID_OR_NOT.keys():
            raise ValueError(f"{path}: is_valid is true or false, got {shortened(sorted(unknown))}")
        splits = [VALID_OR_NOT[value] for value in splits]
    if not column:
        return {"train" if items.labelled else "test": items}
    rows: dict[str, list[int]] = {}
    for row, split in enumerate(splits):
        rows.setdefault(split, []).append(row)
    return {split: items.pick(chosen) for split, chosen in rows.items()}
