"""Pictures whose paths and labels stand in a table: .csv, .tsv or .parquet.

Stands on items; pyarrow is imported when a table is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hub_pictures import from_hub
from .items import Columns, Items, read_file

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".tsv", ".parquet")
SPLIT = "split"  # a column that names the split of each row
IS_VALID = "is_valid"  # or one that says whether it is for validation


def from_table(path: Path, columns: Columns) -> dict[str, Any]:
    """Return `Items` by split; paths in the table are relative to its folder.

    Raises:
        ValueError: the table cannot be read, has no rows, or lacks a column.
    """
    table = _read(path)
    if table.num_rows == 0:
        raise ValueError(f"{path} has no rows below its header {table.column_names}")
    key = columns.find_paths(table.column_names)
    if _holds_pictures(table.schema.field(key)):
        from datasets import Dataset

        return from_hub(Dataset(table), columns)
    names = table[key].to_pylist()
    if None in names:
        raise ValueError(f"{path} has no path in row {names.index(None) + 1}, column {key!r}")
    label = columns.find_labels([name for name in table.column_names if name != key])
    labels = table[label].to_pylist() if label else [None] * len(names)
    labels = [columns.several(None if x == "" and columns.sep is None else x) for x in labels]
    refs = [str(path.parent / name) for name in names]
    items = Items([str(name) for name in names], refs, labels, read_file)
    return _by_split(table, items)


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".parquet":
            return parquet.read_table(path)
        parse = csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        with csv.open_csv(path, parse_options=parse) as reader:
            names = reader.schema.names
        as_text = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string())
        )  # "007" is a name
        return csv.read_csv(path, parse_options=parse, convert_options=as_text)
    except pa.ArrowInvalid as e:
        raise ValueError(f"{path} cannot be read as a table: {e}") from e


def _holds_pictures(field: pa.Field) -> bool:
    return str(field.type).startswith("struct") or "binary" in str(field.type)


def _by_split(table: pa.Table, items: Items) -> dict[str, Items]:
    lower = {name.lower(): name for name in table.column_names}
    if SPLIT in lower:
        splits = [str(name).lower() for name in table[lower[SPLIT]].to_pylist()]
    elif IS_VALID in lower:
        said = (str(value).lower() for value in table[lower[IS_VALID]].to_pylist())
        splits = ["valid" if value in ("true", "1") else "train" for value in said]
    else:
        return {"train" if items.labelled else "test": items}
    rows: dict[str, list[int]] = {}
    for row, split in enumerate(splits):
        rows.setdefault(split, []).append(row)
    return {split: items.pick(chosen) for split, chosen in rows.items()}
