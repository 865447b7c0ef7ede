"""Sentences of README and docs, drawn by the commit, for readers who mark those that they read twice.

python tests/sentences.py [SEED] [--count 40]      # the seed is HEAD's hash unless it is named
"""

import argparse
import random
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?]\*\*))\s+(?=[A-Z`*{\[(])")


def sentences_of(text: str) -> list[str]:
    """Sentences of at least five words, without code blocks, tables, headings and formulas of their own."""
    text = re.sub(r"^ *```.*?^ *```$|^\$\$.*?\$\$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:\||#|<!--|!\[).*$", "\n", text, flags=re.MULTILINE)
    found = []
    for paragraph in re.split(r"\n\s*\n|^ *\* ", text, flags=re.MULTILINE):
        found += END.split(" ".join(paragraph.split()))
    return [s for s in found if len(s.split()) >= 5 and s.endswith((".", "!", "?", ".**", ".)"))]


def drawn(seed: str, count: int) -> list[tuple[str, str]]:
    """Pages and sentences, each sentence as likely as any other."""
    every = [
        (str(page.relative_to(ROOT)), s)
        for page in PAGES
        if "_build" not in page.parts
        for s in sentences_of(page.read_text())
    ]
    return random.Random(seed).sample(every, count)


def main() -> None:
    """Print them, numbered."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", default=head.strip())
    parser.add_argument("--count", type=int, default=40)
    given = parser.parse_args()
    print(f"seed {given.seed}")
    for number, (page, sentence) in enumerate(drawn(given.seed, given.count), 1):
        print(f"{number:3} {page}: {sentence}")


if __name__ == "__main__":
    main()
