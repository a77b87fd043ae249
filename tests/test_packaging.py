"""Packaging: one source of metadata, and files that arrive with whoever installs the package."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SHIPPED = ("settings.ini", "setup.py", "pyproject.toml", "MANIFEST.in", "constraints.txt")
SHIPPED += ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml")
SHIPPED += (".ci", "benchmarks", "docs", "examples", "minilearn", "nbs", "scripts", "tests")

settings = ConfigParser(delimiters=["="], interpolation=None)
settings.read(ROOT / "settings.ini", encoding="utf-8")


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in text.split()]


REQUIRED = requirements(settings["project"]["requirements"])
EXTRAS = {name: requirements(text) for name, text in settings["extras"].items()}
INFO = f"minilearn-{settings['project']['version']}.dist-info"
ALL = REQUIRED + sum(EXTRAS.values(), [])


def top_imports(path: Path) -> set[str]:
    """Names of the packages that a file imports anywhere, relative imports left out."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    return {name.partition(".")[0] for name in names}


def test_setup_needs_nothing_but_the_standard_library_and_setuptools():
    assert top_imports(ROOT / "setup.py") <= {*sys.stdlib_module_names, "setuptools"}


def test_pyproject_holds_no_metadata():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(tables) == {"build-system", "tool"}
    assert "setuptools" not in tables["tool"]


def test_setup_repeats_no_value_of_the_settings():
    code = (ROOT / "setup.py").read_text(encoding="utf-8")
    values = {settings["project"][key] for key in ("version", "description", "author", "license")}
    assert not [value for value in values if value in code]


@pytest.mark.parametrize("requirement", ALL, ids=str)
def test_requirements_are_floors(requirement):
    assert [spec.operator for spec in requirement.specifier] == [">="]


def test_the_floors_are_installed_as_the_settings_have_them():
    command = [sys.executable, ROOT / "scripts" / "floors.py"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    users = REQUIRED + EXTRAS["onnx"] + EXTRAS["processes"] + EXTRAS["loggers"]
    assert out.split() == sorted({f"{r.name}=={next(iter(r.specifier)).version}" for r in users})
    assert "scripts/floors.py > $(FLOORS)/floors.txt" in MAKEFILE
    assert "-c $(FLOORS)/floors.txt" in MAKEFILE


def pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("requirement", REQUIRED + EXTRAS["dev"], ids=str)
def test_constraints_pin_what_is_installed_for_tests(requirement):
    assert requirement.specifier.contains(pins()[requirement.name])


def test_constraints_name_no_host_and_no_file():
    assert not re.search(r"[/@]", "".join(pins()) + "".join(pins().values()))


# The import name, where it is not the name of the distribution.
DISTRIBUTION = {"PIL": "pillow", "lazy_loader": "lazy-loader", "yaml": "PyYAML"}
# Looked for only where it is running already, in a notebook.
BROUGHT_BY_THE_NOTEBOOK = {"IPython"}


def comes_with(requirement: Requirement) -> set[str]:
    """Names of what a requirement of ours itself cannot do without."""
    theirs = map(Requirement, metadata.requires(requirement.name) or ())
    return {r.name for r in theirs if not r.marker or r.marker.evaluate({"extra": ""})}


def test_every_import_of_the_package_is_installed_with_it():
    files = list((ROOT / "minilearn").rglob("*.py"))
    used = set().union(*map(top_imports, files)) - {*sys.stdlib_module_names, "minilearn"}
    used -= BROUGHT_BY_THE_NOTEBOOK
    extras = [r for name, some in EXTRAS.items() if name != "dev" for r in some]
    declared = {requirement.name for requirement in REQUIRED + extras}
    installed = declared.union(*map(comes_with, REQUIRED))
    assert {DISTRIBUTION.get(name, name) for name in used} <= installed


def test_the_version_comes_from_the_settings():
    import minilearn

    assert minilearn.__version__ == settings["project"]["version"]


def test_the_installed_command_answers():
    command = Path(sys.executable).parent / "minilearn"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_training_installs_no_tools():
    assert re.search(r"^train: \$\(STAMP\) ##", MAKEFILE, re.MULTILINE)
    assert "-c constraints.txt -e .\n" in MAKEFILE


@pytest.mark.parametrize("target", ["test", "lint", "bench", "nbs", "types", "coverage", "torture"])
def test_every_target_that_checks_installs_its_tools(target):
    assert re.search(rf"^{target}: \$\(TOOLS\) ", MAKEFILE, re.MULTILINE)
    assert "\nTOOLS    := $(VENV)/.extra-dev\n" in MAKEFILE


@pytest.mark.parametrize("extra", ["docs", "mutants", "ui"])
def test_what_needs_an_extra_installs_it_after_all_else(extra):
    others = r"(?:\$\(VENV\)/\.extra-\w+ )*"
    assert re.search(rf"^{extra}: \$\(TOOLS\) {others}\$\(VENV\)/\.extra-{extra} ", MAKEFILE, re.M)
    assert "\n$(VENV)/.extra-%: $(STAMP)\n" in MAKEFILE
    assert all(r.specifier.contains(pins()[r.name]) for r in EXTRAS[extra])


@pytest.mark.parametrize("file", ["README.md", ".ci/run"])
def test_every_make_command_in_a_text_exists(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    commands = re.findall(r"(?:^ *|`)make ([a-z0-9 -]+)", text, re.MULTILINE)
    named = {target for command in commands for target in command.split()}
    assert named and named <= set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist of the project, and the wheel that `build` makes from that sdist."""
    source = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def files_below(folder: str) -> set[str]:
    """The files in a folder of the project, without what Python and Jupyter leave there."""
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    left = {"__pycache__", ".ipynb_checkpoints"}
    return {str(f.relative_to(ROOT)) for f in files if not left & set(f.parts)}


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_no_more(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    code = {name for name in names if ".dist-info/" not in name}
    assert code == files_below("minilearn")
    assert "minilearn/py.typed" in code
    assert any(name.startswith("minilearn/data/sample/") for name in code)


@pytest.mark.slow
def test_the_sdist_holds_what_builds_tests_and_readers_need(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [{name} if (ROOT / name).is_file() else files_below(name) for name in SHIPPED]
    assert set().union(*wanted) - names == set()
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def tracked() -> list[str]:
    command = ["git", "-C", ROOT, "ls-files"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.skipif(not tracked(), reason="this is no clone")
def test_everything_in_the_repository_is_shipped():
    at_the_top = {name.partition("/")[0] for name in tracked()}
    assert at_the_top - {".gitignore"} == set(SHIPPED)


@pytest.mark.slow
def test_the_description_needs_no_file_beside_it(built):
    """On an index page a relative link is dead, and a relative picture is missing."""
    about = zipfile.ZipFile(built[1]).read(f"{INFO}/METADATA").decode()
    text = about.partition("\n\n")[2]
    assert "pip install" in text and "fit_one_cycle" in text
    assert [target for target in re.findall(r"\]\(([^)\s]+)", text) if ":" not in target] == []


@pytest.mark.slow
def test_the_wheel_says_what_the_settings_say(built):
    archive = zipfile.ZipFile(built[1])
    about = archive.read(f"{INFO}/METADATA").decode()
    scripts = archive.read(f"{INFO}/entry_points.txt").decode()
    assert f"Requires-Python: >={settings['project']['python']}" in about
    assert f"License: {settings['project']['license']}" in about
    assert about.count("Requires-Dist:") == len(ALL)
    assert settings["project"]["console_scripts"].strip() in scripts
    assert f"{INFO}/licenses/LICENSE" in archive.namelist()
