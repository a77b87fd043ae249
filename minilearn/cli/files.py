"""Configuration files: YAML (or JSON), read strictly and written so that they are read back equal.

Stands on PyYAML, which comes with jsonargparse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

FLOAT = re.compile(
    r"""[-+]?(?:(?:\d[\d_]*)(?:\.[\d_]*)?(?:[eE][-+]?\d+)|\d[\d_]*\.[\d_]*|\.\d[\d_]*(?:[eE][-+]?\d+)?
    |\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)""",
    re.X,
)
BOOLS = {"true": True, "True": True, "false": False, "False": False}
# neither 007 nor 1:30, which YAML takes for 7 and 90
WHOLE = re.compile(r"[-+]?(?:0|[1-9]\d*(?:_\d+)*|0x[\da-fA-F]+|0o[0-7]+|0b[01]+)")


def read_config(path: str | Path) -> dict[str, Any]:
    """Return what a file of YAML or JSON says; nothing where it is empty.

    Raises:
        ValueError: it is no YAML, no mapping, or says a key twice.
        OSError: it cannot be read.
    """
    try:
        config = loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"{path} cannot be read: {e}") from e
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ValueError(f"{path} must hold names and values, such as 'lr: 1e-3'")
    if other := [key for key in config if not isinstance(key, str)]:
        raise ValueError(f"{path} must hold names and values; {shown(other[0])} is no name")
    return dict(config)


def loads(text: str) -> Any:
    """Return what a text of YAML says.

    Raises:
        ValueError: it is no YAML, or says a key twice.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as e:
        reason = " ".join(str(e).replace('in "<unicode string>", ', "").split())
        raise ValueError(reason) from e


def yaml_text(config: Mapping[str, Any]) -> str:
    """Return a configuration as YAML that `read_config` reads back equal."""
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted keys as groups, in plain types."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, last = key.split(".")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = plain(value)
    return found


def plain(value: Any) -> Any:
    """Return a value as YAML can hold it."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # of classes derived from them, too
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def shown(value: Any) -> str:
    """Return a value as a user would write it in a file."""
    value = plain(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def number(text: Any) -> Any:
    """Return a text that reads as a number, as true or as false as that, all else as it is."""
    if not isinstance(text, str):
        return text
    if text in BOOLS:
        return BOOLS[text]
    if WHOLE.fullmatch(text.strip()):
        return int(text, 0)
    if FLOAT.fullmatch(text.strip()):
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()).replace("_", ""))
    return text


@cache
def _loader() -> type:
    """Return YAML's safe loader: 1e-3 is a number, a date a text, and a key stands once."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{twice[0]!r} stands there twice", node.start_mark
                )
            return super().construct_mapping(node, deep)

    mended = [f"tag:yaml.org,2002:{name}" for name in ("float", "int", "timestamp")]
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in known if tag not in mended]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for tag, form in zip(mended, (FLOAT, WHOLE), strict=False):
        whole = re.compile(rf"^(?:{form.pattern})$", re.X)
        Loader.add_constructor(tag, lambda loader, node: number(node.value))
        Loader.add_implicit_resolver(tag, whole, list("-+0123456789."))
    return Loader
