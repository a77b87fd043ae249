"""Options: from signatures, files and words to values; a mistake is named with what is near."""

import enum
import string
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from minilearn import cli
from minilearn.cli import parser
from minilearn.cli.parser import Options
from minilearn.cli.values import (
    BadInput,
    PositiveFloat,
    arguments_for,
    near_option,
    read_config,
    yaml_text,
)


@dataclass(frozen=True)
class Noise:
    """Noise.

    Attributes:
        level: how much
        kinds: which
    """

    level: float = 0.0
    kinds: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    is_on: bool = True


def program(
    lr: float,
    epochs: int = 3,
    name: str = "a",
    verbose: bool = False,
    mode: Literal["fast", "slow"] = "fast",
    sizes: list[int] | None = None,
    noise: Noise = Noise(),  # noqa: B008
    extra: dict[str, Any] | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Do something.

    Args:
        lr: the rate,
            of learning
        epochs: how often
    """
    return locals()


def run(*words):
    return cli.run(program, list(words))


def refused(capsys, *words, fn=program):
    """Run with words that are wrong; return the line on stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.run(fn, list(words))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err


def write(tmp_path, text, name="c.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


# ---- where options come from ----


def options_of(fn):
    """The parser's options by name."""
    options = Options()
    options.add(fn)
    own = {a.dest: a for a in options.parser._actions if a.dest in options.kinds}
    return {name: own[name] for name in own if name not in ("config", "print_config", "debug")}


def test_an_option_has_name_type_default_and_help_of_the_signature():
    options = options_of(program)
    assert list(options)[:3] == ["lr", "epochs", "name"]
    assert options["lr"].help.startswith("the rate,") and options["epochs"].default == 3
    assert options["noise.level"].help.startswith("how much")
    assert options["noise.kinds"].default == []
    assert options["sizes"]._typehint == list[int] | None


def inner(source, *, depth: int = 2, bs: int = 1):
    """Do.

    Args:
        depth: how deep
    """


def outer(bs: int = 64, **more):
    return inner("source", bs=bs, **more)


def test_arguments_that_are_passed_on_are_options_too():
    options = options_of(outer)
    assert list(options) == ["bs", "depth"]
    assert options["bs"].default == 64 and options["depth"].help.startswith("how deep")


def test_help_lists_every_option_with_default_and_meaning(capsys):
    assert run("--help") is None
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"--{name}" in text for name in options_of(program))
    assert "the rate, of learning (required, type: float)" in text
    assert "how often (type: int, default: 3)" in text
    assert "--noise.level LEVEL how much (type: float, default: 0.0)" in text
    assert "-c" in text and "--print_config" in text


# ---- R21: default, then file, then command line ----


def test_words_win_over_files_and_files_over_defaults(tmp_path):
    path = write(tmp_path, "lr: 1\nname: file\nnoise: {level: 2}\nepochs: 7\n")
    found = run("-c", path, "--epochs", "9", "--noise.kinds", "a,b")
    assert (found["lr"], found["name"], found["epochs"], found["mode"]) == (1.0, "file", 9, "fast")
    assert found["noise"] == Noise(2.0, ["a", "b"])


@pytest.mark.parametrize("order", [("--lr", "5", "-c"), ("-c",)])
def test_the_order_of_words_and_files_on_the_line_does_not_matter(order, tmp_path):
    path = write(tmp_path, "lr: 1\n")
    words = [*order, path] if len(order) > 1 else [*order, path, "--lr=5"]
    assert run(*words)["lr"] == 5.0


def test_of_two_files_the_later_one_wins(tmp_path):
    one, two = write(tmp_path, "lr: 1\nname: x\n", "1.yaml"), write(tmp_path, "lr: 2\n", "2.yaml")
    found = run("-c", one, "--config", two)
    assert (found["lr"], found["name"]) == (2.0, "x")


def test_what_is_required_may_stand_in_the_file_and_its_lack_is_named(tmp_path, capsys):
    assert run("-c", write(tmp_path, "lr: 2e-2"))["lr"] == 0.02
    assert "arguments are required: lr" in refused(capsys)


def test_the_environment_sets_nothing(monkeypatch):
    for name in ("LR", "EPOCHS", "MINILEARN_EPOCHS", "APP_EPOCHS", "JSONARGPARSE_DEFAULT_ENV"):
        monkeypatch.setenv(name, "true")
    assert run("--lr", "1")["epochs"] == 3


def test_an_empty_file_says_nothing(tmp_path):
    path = write(tmp_path, "# nothing\n")
    assert run("--lr", "1", "-c", path)["epochs"] == 3


def test_one_call_leaves_nothing_for_the_next():
    run("--lr", "1", "--noise.level", "3", "--extra.a", "1")
    again = run("--lr", "1")
    assert again["noise"] == Noise() and again["extra"] is None


def test_dotted_words_go_into_a_dict_of_the_file(tmp_path, capsys):
    path = write(tmp_path, "lr: 1\nextra: {a: {b: 1, c: 2}, d: x}\n")
    found = run("-c", path, "--extra.e", "3e1", "--extra.d=[1, y]")["extra"]
    assert found == {"a": {"b": 1, "c": 2}, "d": [1, "y"], "e": 30.0}
    assert "write --extra.a '{…}'" in refused(capsys, "-c", path, "--extra.a.b", "3e1")


def test_a_group_on_the_command_line_is_a_mapping(capsys):
    found = run("--lr", "1", "--noise.level", "3", "--noise", "{kinds: [a]}")
    assert found["noise"] == Noise(3.0, ["a"])
    assert "noise" in refused(capsys, "--lr", "1", "--noise", "x")


def test_dotted_keys_in_a_file_are_the_same_as_groups(tmp_path):
    assert run("-c", write(tmp_path, "lr: 1\nnoise.level: 4\n"))["noise"].level == 4.0


@pytest.mark.parametrize("value", ["false", "true"])
def test_bools_can_be_negated_in_groups_too(value):
    def fn(on_top: bool = True, part: Part = Part()):  # noqa: B008
        return on_top, part.is_on

    for word in ("--no-on-top", "--no_on_top", "--on-top=false"):
        assert cli.run(fn, [word]) == (False, True)
    for word in ("--no-part.is-on", "--part.no-is-on", "--part.no_is_on", "--part.is-on=off"):
        assert cli.run(fn, [word]) == (True, False)
    assert cli.run(fn, ["--part.is_on", value]) == (True, value == "true")


def test_dashes_in_names_are_underscores_and_in_values_stay():
    def fn(batch_size: int = 1, name: str = "", more: dict[str, Any] = {}):  # noqa: B006
        return batch_size, name, more

    words = ["--batch-size", "64", "--name", "a-b_c", "--more.x-y", "p-q"]
    assert cli.run(fn, words) == (64, "a-b_c", {"x-y": "p-q"})


def test_switches(tmp_path):
    for words, value in [
        (["--verbose"], True),
        (["--verbose", "false"], False),
        (["--verbose=no"], False),
        (["--no_verbose"], False),
        (["--verbose", "--epochs", "2"], True),
    ]:
        assert run("--lr", "1", *words)["verbose"] is value


# ---- C145: unknown keys ----

TYPOS = [
    ("lrr: 0.1", [], "Option 'lrr' is not accepted", "lr"),
    ("epoch: 5", [], "Option 'epoch' is not accepted", "epochs"),
    ("noise: {levl: 1, kinds: [a]}", [], "'noise' does not accept option 'levl'", "noise.level"),
    ("noise: {lr: 2}", [], "'noise' does not accept option 'lr'", "lr"),
    ("trainer: {lr: 3}", [], "Option 'trainer.lr' is not accepted", "lr"),
    ("", ["--verbos"], "--verbos is no option", "--verbose"),
    ("", ["--nme=x"], "--nme is no option", "--name"),
]


def check_unknown_key(tmp_path, capsys, text, words, said, near):
    """It is named with its full path and its nearest valid key, in one line."""
    err = refused(capsys, "-c", write(tmp_path, text), *words)
    assert f"{said}; did you mean {near}?" in err


@pytest.mark.case("C145")
@pytest.mark.parametrize("typo", TYPOS, ids=lambda typo: typo[2])
def test_unknown_keys_at_any_depth_are_named_with_what_is_near(typo, tmp_path, capsys):
    check_unknown_key(tmp_path, capsys, *typo)


@pytest.mark.case("C145")
@pytest.mark.parametrize("typo", TYPOS[:5], ids=lambda typo: typo[2])
def test_that_check_sees_keys_that_are_passed_over(typo, tmp_path, capsys, monkeypatch):
    known = {**dict.fromkeys(options_of(program)), "noise": ("level", "kinds")}

    def lenient(path):
        config = {k: v for k, v in read_config(path).items() if k in known}
        nested = {k: v for k, v in config.get("noise", {}).items() if k in known["noise"]}
        return {"lr": 1.0, **config, "noise": nested}

    monkeypatch.setattr(parser, "read_config", lenient)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_unknown_key(tmp_path, capsys, *typo)


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("lr: fast", [], "lr: Expected a float. Got value: fast"),
        ("epochs: 3.5", [], "epochs: Expected a int. Got value: 3.5"),
        ("sizes: [1, x]", [], "sizes: Expected one of ["),  # in an order of jsonargparse's
        ("sizes: [1, x]", [], "list[int]"),
        ("sizes: [1, x]", [], "NoneType"),
        ("sizes: [1, x]", [], "]. Got value: [1, 'x']"),
        ("", ["--mode", "fats"], "mode: Expected a Literal['fast', 'slow']. Got value: fats"),
        ("mode: {sizes: [1]}", [], "mode: Expected a Literal['fast', 'slow']. Got value: {'sizes"),
    ],
)
def test_wrong_types_are_named_with_option_and_value(text, words, said, tmp_path, capsys):
    assert said in refused(capsys, "-c", write(tmp_path, text), *words)


@given(st.sampled_from(["epochs", "verbose", "noise.level", "sizes"]), st.data())
def test_a_key_with_one_wrong_letter_is_near_to_itself(key, data):
    known = list(options_of(program))
    at = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    typo = key[:at] + letter + key[at + 1 :]
    if typo not in known:
        assert near_option(typo, known) == f"; did you mean {key}?"


@given(st.text(string.ascii_letters + "_-.", min_size=1))
def test_no_key_is_taken_in_silence(key):
    options = Options()
    options.add(program)
    if key not in options.kinds and not key.startswith("extra."):
        with pytest.raises(BadInput):
            options.parse([], [{key: 1}])


# ---- C146: numbers ----

RATES = ["1e-4", "1E-4", "1.0e-4", '"1e-4"', "'1E-4'", "0.0001", "1e-04", ".1e-3", "+1e-4"]


def check_rates(tmp_path):
    """Every spelling is the float 0.0001, at the top, in a group, in a dict and in a list."""
    for text in RATES:
        inside = text.strip("'\"")
        path = write(
            tmp_path, f"lr: {text}\nnoise: {{level: {text}}}\nextra: {{a: {{b: [{inside}]}}}}\n"
        )
        found = run("-c", path)
        rates = [found["lr"], found["noise"].level, found["extra"]["a"]["b"][0]]
        assert rates == [1e-4] * 3 and {type(rate) for rate in rates} == {float}, text
        assert run("--lr", inside)["lr"] == 1e-4


@pytest.mark.case("C146")
def test_a_rate_in_scientific_notation_is_a_number(tmp_path):
    check_rates(tmp_path)


@pytest.mark.case("C146")
def test_that_check_sees_a_rate_that_is_text(tmp_path, monkeypatch):
    plain_yaml = lambda path: yaml.safe_load(Path(path).read_text())  # noqa: E731
    monkeypatch.setattr(parser, "read_config", plain_yaml)
    with pytest.raises((AssertionError, SystemExit)):
        check_rates(tmp_path)


def converted(kind, value):
    """Return an argument as a function of the user's gets it."""

    def fn(x): ...

    fn.__annotations__["x"] = kind
    return arguments_for(fn, {"x": value}, "args", "fn")["x"]


@pytest.mark.case("C146")
@pytest.mark.parametrize(
    ("kind", "given_value", "expected"),
    [
        (bool, "false", False),
        (bool, "False", False),
        (bool, "yes", True),
        (float, 3, 3.0),
        (float, "1e-4", 1e-4),
        (float | None, None, None),
        (str, "1e3", "1e3"),
        (list[str], "[a, b]", ["a", "b"]),
        (tuple[int, int], "[1, 2]", (1, 2)),
    ],
)
def test_values_become_what_is_asked_for(kind, given_value, expected):
    found = converted(kind, given_value)
    assert found == expected and isinstance(found, type(expected))


@pytest.mark.case("C146")
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (int, 3.5),
        (int, "3.5"),
        (int, True),
        (float, "fast"),
        (float, True),
        (bool, "maybe"),
        (bool, 2),
        (str, 5),
        (list[int], [1, 2.5]),
        (Literal["a", "b"], "c"),
        (tuple[int, int], [1]),
    ],
)
def test_what_cannot_be_converted_is_named_with_its_value(kind, wrong):
    with pytest.raises(BadInput, match=r"^args\.x: ") as e:
        converted(kind, wrong)
    assert str(wrong[-1] if isinstance(wrong, list) else wrong) in str(e.value)


def read_back(value):
    return read_config(write(Path(tempfile.mkdtemp()), yaml_text(value)))


@settings(max_examples=50)
@given(st.floats(allow_nan=False))
def test_every_float_survives_a_file(number):
    assert read_back({"a": number, "b": {"c": [number]}}) == {"a": number, "b": {"c": [number]}}


@pytest.mark.case("C146")
@settings(max_examples=50)
@given(st.one_of(st.text(), st.from_regex(r"[-+]?[\d._:eE]{1,6}", fullmatch=True), st.integers()))
def test_every_text_survives_a_file_as_a_text(value):
    assert read_back({"a": value, "b": [value]}) == {"a": value, "b": [value]}


def test_a_configuration_that_is_printed_starts_an_equal_run(tmp_path, capsys):
    words = ["--lr", "3e-4", "--noise.kinds", "x", "--extra.a", "1e-3", "--sizes", "[1, 2]"]
    first = run(*words, "--out", "a/b")
    assert run(*words, "--out", "a/b", "--print_config") is None
    assert run("-c", write(tmp_path, capsys.readouterr().out)) == first


def test_print_config_shows_what_is_required_as_null(capsys):
    run("--print_config")
    assert yaml.safe_load(capsys.readouterr().out)["lr"] is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- 1\n", "names and values"),
        ("1: 2\n", "names and values"),
        ("a: [1\n", "cannot be read"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(text, named, tmp_path, capsys):
    path = write(tmp_path, text) if text is not None else str(tmp_path / "c.yaml")
    err = refused(capsys, "-c", path)
    assert named in err and "c.yaml" in err


def test_a_date_and_json_are_read(tmp_path):
    path = write(tmp_path, '{"lr": 1e-3, "name": "x"}', "c.json")
    assert read_config(path) == {"lr": 1e-3, "name": "x"}
    assert read_config(write(tmp_path, "name: 2026-11-29\n")) == {"name": "2026-11-29"}


def test_paths_are_written_as_texts():
    found = read_back({"a": {"b": Path("x"), "c": (1, float("inf"))}})
    assert found == {"a": {"b": "x", "c": [1, float("inf")]}}


# ---- run: how it ends ----


def test_run_returns_what_the_function_returns():
    assert cli.run(lambda n=2: n * 2, ["--n", "4"]) == 8


def test_an_error_of_the_function_is_a_line_with_debug_a_traceback(capsys):
    def fails(n: int = 0) -> None:
        raise ValueError("no such\nthing")

    assert "no such thing" in refused(capsys, fn=fails)
    with pytest.raises(ValueError, match="no such"):
        cli.run(fails, ["--debug"])


def test_a_fault_of_the_function_keeps_its_traceback():
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.run(fails, [])


def test_ctrl_c_is_130(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        cli.run(interrupted, [])
    assert ended.value.code == 130 and "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--epochs"], ["--lr", "1", "stray"], ["--mode="]])
def test_words_without_a_value_or_a_key_are_refused(words, capsys):
    refused(capsys, *words)


# ---- other inputs of those kinds ----


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


@dataclass(frozen=True)
class Layer:
    width: int
    name: str = "x"


def structured(
    layers: list[Layer] = [],  # noqa: B006
    head: Layer | None = None,
    colour: Colour = Colour.RED,
    counts: dict[str, int] = {"a": 1},  # noqa: B006
    pair: tuple[int, str] = (1, "a"),
    sizes: Sequence[int] = (1,),
    path: Path = Path("Data/X"),
    on: bool = True,
) -> dict[str, Any]:
    return locals()


def test_records_in_lists_and_unions_are_checked_in_every_field(tmp_path, capsys):
    path = write(tmp_path, "layers: [{width: 2}, {width: '3', name: y}]\nhead: {width: 10}\n")
    found = cli.run(structured, ["-c", path])
    assert found["layers"] == [Layer(2), Layer(3, "y")] and found["head"] == Layer(10)
    assert cli.run(structured, ["--head.width", "4"])["head"] == Layer(4)
    for text, said in [
        ("layers: [{widht: 2}]", "Option 'widht' is not accepted"),
        ("layers: [{name: x}]", "required: width"),
        ("head: {width: x}", "width"),
        ("head: {width: 1, nme: y}", "nme"),
    ]:
        assert said in refused(capsys, "-c", write(tmp_path, text), fn=structured)


@pytest.mark.parametrize("words", [["--counts.a", "x"], ["--colour", "BLEU"], ["--pair", "1"]])
def test_what_does_not_fit_into_a_structure_is_refused(words, capsys):
    assert words[1] in refused(capsys, *words, fn=structured)


@pytest.mark.parametrize("words", [["--colour", "BLUE"], ["--no_on"], ["--pair", "[2, b]"], []])
def test_every_kind_of_value_is_printed_as_it_is_read(words, tmp_path, capsys):
    words = [*words, "--head.width", "1", "--layers", "[{width: 2}]", "--sizes", "[1, 2]"]
    first = cli.run(structured, words)
    cli.run(structured, [*words, "--print_config"])
    assert cli.run(structured, ["-c", write(tmp_path, capsys.readouterr().out)]) == first


def test_help_shows_choices_and_defaults_as_they_are_written(capsys):
    cli.run(structured, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--colour {RED,BLUE}" in text and "default: RED)" in text and "default: Data/X" in text


def test_null_is_a_value_only_where_the_type_says_so(tmp_path, capsys):
    assert run("-c", write(tmp_path, "lr: null\nsizes: null\n"), "--lr", "1")["sizes"] is None
    for text, said in [
        ("epochs:", "epochs: it has a value by default, and takes no null"),
        ("verbose: null", "verbose: it has a value by default, and takes no null"),
    ]:
        assert said in refused(capsys, "--lr", "1", "-c", write(tmp_path, text))
    assert "required: lr" in refused(capsys, "-c", write(tmp_path, "lr: null"))


def test_a_section_that_is_no_section_and_a_value_that_is_one(tmp_path, capsys):
    for text, said in [
        ("lr: {a: 1}", "lr: Expected a float. Got value: {'a': 1}"),
        ("lr: 1\nnoise: 5", "noise is a group of options, got 5"),
        ("lr: 1\nnoise:", "noise is a group of options, got None"),
        ("nosie: {level: 1}", "Option 'nosie.level' is not accepted; did you mean noise.level?"),
    ]:
        assert said in refused(capsys, "-c", write(tmp_path, text))


@pytest.mark.parametrize("text", ["nan", ".nan", "-1", "0"])
def test_a_positive_number_is_above_nothing(text):
    for value in (text, yaml.safe_load(text)):
        with pytest.raises(BadInput):
            converted(PositiveFloat, value)


@pytest.mark.parametrize("text", ["on", "off", "No", "TRUE", "false"])
def test_a_switch_takes_every_spelling_of_yaml(text):
    expected = text.lower() in ("on", "true")
    assert run("--lr", "1", "--verbose", text)["verbose"] is expected
    assert run("--lr", "1", f"--verbose={text}")["verbose"] is expected


def test_names_that_other_programs_have_are_near_to_ours():
    known = ["lr", "bs", "opt", "size", "log", "log_every"]
    others = [("learning-rate", "lr"), ("batch-size", "bs"), ("batchSize", "bs")]
    theirs = [("learning_rate", "lr"), ("batch_size", "bs"), ("optimizer", "opt"), *others]
    for name, near in theirs:
        assert near_option(name, known) == f"; did you mean {near}?"
    assert near_option("log_evry", known) == "; did you mean log_every?"


def test_stars_are_no_options(capsys):
    def fn(a: int, *rest: int, b: int = 2, **more: int) -> tuple[Any, ...]:
        return a, rest, b, more

    assert cli.run(fn, ["--a", "1"]) == (1, (), 2, {})
    assert "--rest is no option" in refused(capsys, "--a", "1", "--rest", "3", fn=fn)


def test_an_argument_that_hides_an_option_of_all_programs_is_a_fault():
    def fn(config: str = "x") -> None: ...

    with pytest.raises(TypeError, match="rename the argument config"):
        cli.run(fn, [])


@pytest.mark.case("C145")
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("-lr", "-lr is no option; did you mean --lr?"),
        ("-lr=0.1", "-lr is no option; did you mean --lr?"),
        ("-epoch", "-epoch is no option; did you mean --epochs?"),
        ("-v", "-v is no option"),
        ("--print_config=maybe", 'Invalid option "maybe" for --print_config'),
    ],
)
def test_words_that_are_nearly_options_are_refused(word, said, capsys):
    assert said in refused(capsys, "--lr", "1", word)


def test_a_negative_number_is_a_value_and_no_option():
    assert run("--lr", "-1")["lr"] == -1.0 and run("--lr", "-1e-3")["lr"] == -1e-3


@pytest.mark.parametrize("name", ["config", "debug", "print_config"])
def test_options_of_every_program_are_none_of_a_file(name, tmp_path, capsys):
    assert f"{name} is no option" in refused(capsys, "-c", write(tmp_path, f"{name}: true\n"))
    run("--debug", "--print_config")
    assert name not in yaml.safe_load(capsys.readouterr().out)


def test_commas_make_a_list_only_where_there_is_no_other_type():
    def fn(names: list[str] | str = "", sizes: list[int] = []):  # noqa: B006
        return names, sizes

    assert cli.run(fn, ["--names=a,b.txt", "--sizes", "8, 9"]) == ("a,b.txt", [8, 9])
    assert cli.run(fn, ["--names", "[a, b]", "--sizes", "8"]) == (["a", "b"], [8])


def test_a_file_option_without_a_file_is_named(capsys):
    assert "--config needs a value" in refused(capsys, "--lr", "1", "-c")


def test_a_closed_pipe_is_no_error(tmp_path):
    program = (
        "import sys\nfrom minilearn import cli\n"
        "def f(n: int = 9):\n    for i in range(n): print(i)\n"
        "cli.run(f, sys.argv[1:])\n"
    )
    for n in ("9", "99999"):
        command = [sys.executable, "-c", program, "--n", n]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        assert process.wait() == 141 and process.stderr.read() == b""
