"""Configuration files: YAML (or JSON), read strictly and written so that they are read back equal.

Stands on PyYAML, which comes with jsonargparse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FLOAT = re.compile(
    r"""[-+]?(?:(?:\d[\d_]*)(?:\.[\d_]*)?(?:[eE][-+]?\d+)|\d[\d_]*\.[\d_]*|\.\d[\d_]*(?:[eE][-+]?\d+)?
    |\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)""",
    re.X,
)
BOOLS = {"true": True, "True": True, "false": False, "False": False}
WHOLE = re.compile(r"[-+]?(?:0|[1-9][\d_]*)")


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
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ValueError(f"{path} must hold names and values, such as 'lr: 1e-3'")
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
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # of jsonargparse's own numbers, too
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def number(text: Any) -> Any:
    """Return a text that reads as a number, as true or as false as that, all else as it is."""
    if not isinstance(text, str):
        return text
    if text in BOOLS:
        return BOOLS[text]
    if WHOLE.fullmatch(text.strip()):
        return int(text)
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

    mended = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in known if tag not in mended]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_constructor(mended[0], lambda loader, node: number(node.value))
    whole = re.compile(rf"^(?:{FLOAT.pattern})$", re.X)
    Loader.add_implicit_resolver(mended[0], whole, list("-+0123456789."))
    return Loader
