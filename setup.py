"""Hand the metadata in settings.ini to setuptools."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def lines(text: str) -> list[str]:
    """Split a value that settings.ini spreads over several lines."""
    return text.strip().splitlines()


def on_its_own(text: str) -> str:
    """Return a README for a page without the repository: links of its files are their texts."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]\n]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)


settings = ConfigParser(delimiters=["="], interpolation=None)
with open(HERE / "settings.ini", encoding="utf-8") as file:
    settings.read_file(file)
project = settings["project"]

setup(
    name=project["name"],
    version=project["version"],
    description=project["description"],
    long_description=on_its_own((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    author=project["author"],
    license=project["license"],
    license_files=["LICENSE"],
    keywords=project["keywords"].split(),
    classifiers=lines(project["classifiers"]),
    python_requires=f">={project['python']}",
    packages=find_packages(include=["minilearn", "minilearn.*"]),
    package_data={"minilearn": ["*.pyi", "py.typed", "base/*.json", "data/sample/*"]},
    install_requires=lines(project["requirements"]),
    extras_require={name: lines(value) for name, value in settings["extras"].items()},
    entry_points={"console_scripts": lines(project["console_scripts"])},
    zip_safe=False,
)
