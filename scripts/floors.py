"""Print the lowest versions that settings.ini allows users, as constraints for pip.

The tools for tests and docs are left out: development pins those in constraints.txt.
"""

from configparser import ConfigParser
from pathlib import Path

TOOLS = ("dev", "docs", "mutants", "ui", "vision")  # vision: another torch, `make test-vision`


def floors():
    """Return "name==version" for each requirement of the package and of the extras for users."""
    settings = ConfigParser(delimiters=["="], interpolation=None)
    settings.read(Path(__file__).resolve().parents[1] / "settings.ini", encoding="utf-8")
    texts = [text for name, text in settings["extras"].items() if name not in TOOLS]
    lines = "\n".join([settings["project"]["requirements"], *texts]).split()
    pairs = (line.split(">=") for line in lines)
    return sorted({f"{name.partition('[')[0]}=={version}" for name, version in pairs})


if __name__ == "__main__":
    print("\n".join(floors()))
