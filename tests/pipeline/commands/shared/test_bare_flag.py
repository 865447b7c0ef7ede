"""A flag that stands without a value, before other words."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from millrace.pipeline.commands.shared.bare_flag import with_bare_flag

app = typer.Typer()


@app.command(cls=with_bare_flag("--form", "own", ("a", "b")))
def said(job: str = typer.Argument("none"), form: Annotated[str, typer.Option()] = "no", out: str = "x") -> None:
    typer.echo(f"{job} {form} {out}")


@pytest.mark.parametrize(
    ("words", "heard"),
    [
        ([], "none no x"),
        (["--form"], "none own x"),
        (["--form", "job.toml"], "job.toml own x"),
        (["--form", "a", "job.toml"], "job.toml a x"),
        (["--form=b", "--out", "y"], "none b y"),
        (["job.toml", "--form", "--out", "y"], "job.toml own y"),
        (["--form=c"], "none c x"),
    ],
)
def test_the_next_word_is_its_value_only_if_it_is_one(words: list[str], heard: str) -> None:
    assert CliRunner().invoke(app, words).output.strip() == heard
