"""Help pages: every command has its theme, and an example that its own parser takes."""

import re
import shlex
from typing import Any

import pytest
import typer

from millrace.pipeline import cli
from millrace.pipeline.commands.shared.help import OPTIONS, THEMES, example_of

APP: Any = typer.main.get_command(cli.app)
EXAMPLES = {name: text for examples in THEMES.values() for name, text in examples.items()}


def test_each_command_has_one_theme():
    assert sorted(name for examples in THEMES.values() for name in examples) == sorted(APP.commands)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_are_command_lines(name):
    program, command, *words = shlex.split(EXAMPLES[name])
    assert (program, command) == ("millrace", name)
    context = APP.commands[name].make_context(name, words)
    assert context.params
    assert len(example_of(name)) <= 80


def test_the_help_lists_themes_in_order_and_commands_under_them(capsys):
    with pytest.raises(SystemExit):
        APP(["--help"])
    text = capsys.readouterr().out
    places = [text.index(f"\n{theme}:") for theme in THEMES]
    assert places == sorted(places)
    for theme, examples in THEMES.items():
        section = text[text.index(f"\n{theme}:") :].split("\n\n")[0]
        assert all(f"\n  {name} " in section for name in examples)


def test_a_help_page_ends_with_the_example(capsys):
    with pytest.raises(SystemExit):
        APP(["predict", "--help"])
    assert "Example: millrace predict runs/a --out predictions.parquet" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "train"])
def test_options_of_a_run_are_listed_by_theme_each_once(command, capsys):
    with pytest.raises(SystemExit):
        APP([command, "--help"])
    text = capsys.readouterr().out
    places = [text.index(f"\n{theme}:") for theme in ("Arguments", *OPTIONS)]
    assert places == sorted(places) and "\nOptions:" not in text
    flags = [option for param in APP.commands[command].params for option in param.opts if option.startswith("--")]
    assert all(len(re.findall(rf"^  (-h, )?{flag} ", text, re.MULTILINE)) == 1 for flag in [*flags, "--help"]), text
