"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from refimpl.profiles import PROFILES
from refimpl.verdict.kinds import DESCRIPTIONS, Kind

ROOT = Path(__file__).resolve().parents[1]


def test_every_kind_is_published_with_its_description() -> None:
    page = (ROOT / "docs/failure-kinds.md").read_text()
    table = dict(re.findall(r"^\| `(.+?)` \| (.*?) \|$", page, flags=re.MULTILINE))
    assert table == {kind.value: DESCRIPTIONS[kind] for kind in Kind}


def test_the_readme_names_the_profiles_sizes() -> None:
    readme = (ROOT / "README.md").read_text()
    sizes = list(PROFILES.values())
    assert f"{sizes[0]}, {sizes[1]} or {sizes[2]} examples" in readme


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("properties/*.md"),
        *ROOT.glob("fixtures/**/*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
