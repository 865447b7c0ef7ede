"""Sentences are drawn by a seed, from prose alone; docs stay within their words."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = 50_000
"""Of README, ARCHITECTURE, CONTRIBUTING and docs, as `wc -w` counts them. It only falls."""


@pytest.fixture(scope="module")
def sentences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sentences", ROOT / "tests" / "sentences.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sentences"] = module
    spec.loader.exec_module(module)
    return module


def test_prose_is_cut_into_sentences(sentences: ModuleType) -> None:
    page = """# A heading of five words here

Each rank has its part, and reads
no other. **Use it** if rows may travel. Too short.

```sh
a command that is not prose at all.
```

| a cell | that is no sentence of ours. |

* A point of a list ends. `sar` begins the second sentence here.
"""
    assert sentences.sentences_of(page) == [
        "Each rank has its part, and reads no other.",
        "**Use it** if rows may travel.",
        "A point of a list ends.",
        "`sar` begins the second sentence here.",
    ]


def test_a_seed_draws_the_same_sentences(sentences: ModuleType) -> None:
    first = sentences.drawn("a commit", 40)
    assert first == sentences.drawn("a commit", 40) != sentences.drawn("another", 40)
    assert len(set(first)) == 40
    for page, sentence in first:
        assert sentence in " ".join((ROOT / page).read_text().split())


def test_documents_stay_within_their_words() -> None:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    pages += [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    assert sum(len(re.findall(r"\S+", p.read_text())) for p in pages) <= WORDS
