import re
import tomllib

import pytest

from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.systems import SYSTEMS
from millrace.pipeline.config.template import _meanings, job_template
from millrace.storage.errors import InputError

CHOSEN = {"dataset": "sbm:nodes=40", "fanout": "5,3", "lr": 0.1, "model": "gat", "train": {"schedule": "cosine"}}


@pytest.mark.parametrize("system", list(SYSTEMS))
def test_a_template_is_the_job_that_was_asked_for(system):
    table = {**CHOSEN, "system": system}
    if not SYSTEMS[system].samples:
        del table["fanout"]
    assert resolve(tomllib.loads(job_template(table))) == resolve(table)


@pytest.mark.parametrize("more", [{}, {"ranks": 4}])
@pytest.mark.parametrize("system", list(SYSTEMS))
def test_the_values_in_comments_are_the_defaults(system, more):
    table = {"system": system, **more}
    text = re.sub(r"^# (\w+ = (?! # unset).*)$", r"\1", job_template(table), flags=re.MULTILINE)
    assert resolve(tomllib.loads(text)) == resolve(table)
    assert "\nlr = 0.003" in text and f"[{system}]" in text
    assert not [name for name in SYSTEMS if name != system and f"[{name}]" in text]


def test_each_key_has_its_meaning_before_it():
    lines = job_template({}).splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"(# )?\w+ = ", line)]
    assert len(keys) > 60
    assert all(lines[i - 1].startswith("# ") and len(lines[i - 1]) > 4 for i in keys)


def test_a_job_that_cannot_be_is_refused():
    with pytest.raises(InputError, match=r"unknown configuration key 'train\.rl'"):
        job_template({"train": {"rl": 1}})


FOREIGN = """
from millrace.pipeline.config.schema import Section

class Foreign(Section):
    rate: int = 3
    "Its meaning."
"""


def test_keys_of_other_packages_have_their_meaning_too(tmp_path, monkeypatch):
    (tmp_path / "foreign_section.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    import foreign_section

    assert _meanings(foreign_section.Foreign) == {"rate": "Its meaning."}
    assert _meanings(type("Made", (foreign_section.Foreign,), {"__module__": "nowhere"})) == {"rate": "Its meaning."}


def test_the_first_line_can_be_pasted():
    assert "millrace run 'my job.toml'" in job_template({}, "my job.toml")


def test_a_file_name_with_a_line_break_adds_no_key():
    text = job_template({}, "a\nepochs = 7\x1b.toml")
    assert tomllib.loads(text) == tomllib.loads(job_template({}))
    assert "# A job of Millrace: millrace run 'a epochs = 7\\x1b.toml'" in text
