"""The tests and audits that the proofs name exist."""

from __future__ import annotations

import re
from pathlib import Path

from hushstream.replay.audits.catalogue import all_audits

ROOT = Path(__file__).parents[2]
PROOFS = (ROOT / "deploy" / "docs" / "proofs.md").read_text(encoding="utf-8")


def test_every_test_that_a_lemma_names_exists():
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PROOFS))
    assert len(named) > 40
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text(encoding="utf-8")), f"{path}::{name}"


def test_every_audit_that_a_lemma_names_is_in_the_table():
    known = {audit.name for audit in all_audits()}
    named = {
        name
        for line in re.findall(r"audits? ((?:`[\w-]+`(?:, )?)+)", PROOFS)
        for name in re.findall(r"`([\w-]+)`", line)
    }
    assert len(named) > 20
    assert named <= known


def test_every_lemma_names_what_holds_it():
    lemmas = re.split(r"\n\*\*Lemma ", PROOFS)[1:]
    assert len(lemmas) == 21
    for lemma in lemmas:
        assert re.search(r"Held by\s", lemma), lemma[:40]
