"""The tests and audits that the proofs name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from hushstream.replay.audits.catalogue import audit_names
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import KINDS
from hushstream.systems.catalogue import builtin
from hushstream.systems.colin.configuration import MECHANISMS
from hushstream.systems.p2b.configuration import ReleaseMode, SumsRelease
from hushstream.systems.pdap.configuration import PLACEMENTS
from hushstream.systems.pdol.configuration import CounterName

ROOT = Path(__file__).parents[2]
PROOFS = (ROOT / "deploy" / "docs" / "proofs.md").read_text(encoding="utf-8")


def test_every_test_that_a_lemma_names_exists():
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PROOFS))
    assert len(named) > 40
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text(encoding="utf-8")), f"{path}::{name}"


def test_every_audit_that_a_lemma_names_is_in_the_table():
    known = set(audit_names())
    named = {
        name
        for line in re.findall(r"audits? ((?:`[\w-]+`(?:, )?)+)", PROOFS)
        for name in re.findall(r"`([\w-]+)`", line)
    }
    assert len(named) > 20
    assert named <= known


def test_every_lemma_names_what_holds_it():
    lemmas = re.split(r"\n\*\*Lemma ", PROOFS)[1:]
    assert len(lemmas) == 32
    for lemma in lemmas:
        assert re.search(r"Held by\s", lemma), lemma[:40]


UNNOISED = "exact"
"""What replays of public datasets alone may ask for: nothing of it is promised."""
RELEASES = {
    "p2b": ({*get_args(ReleaseMode), *get_args(SumsRelease), "lift"} - {"slot-sums", "auto"}),
    "colin": set(MECHANISMS) - {UNNOISED},
    "pdap": set(PLACEMENTS),
    "pdol": set(get_args(CounterName)) - {UNNOISED},
    "bgt": set(KINDS),
}
"""What a configuration of each system can ask to be released; slot sums are either fresh or counted."""


def fork_rows() -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Releases, records and the other cells of each row."""
    table = PROOFS.partition("|release|record|")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        releases, records = (re.findall(r"`([\w/-]+)`", cell) for cell in cells[:2])
        yield releases, records, cells[2:]


def test_every_release_of_every_system_has_one_row_in_the_table_of_forks():
    assert set(RELEASES) == {kind.name for kind in builtin()}
    named = [release for releases, _, _ in fork_rows() for release in releases]
    assert sorted(named) == sorted(f"{system}/{name}" for system, names in RELEASES.items() for name in names)
    for _, _, cells in fork_rows():
        assert len(cells) == 3
        assert all(cells)


def test_every_record_that_a_mechanism_releases_is_in_the_table_of_forks():
    """A release says whether it is private as stated; a model is made of releases, and a ledger entry names one."""
    schemas = (Path(codec.__file__).parent / "avro").glob("*.avsc")
    said = {path.stem for path in schemas if '"private_as_stated"' in path.read_text(encoding="utf-8")}
    released = {name for name in said if not name.endswith("Model")} - {"LedgerEntry"}
    assert {record for _, records, _ in fork_rows() for record in records} == released


def test_a_row_that_promises_one_price_names_the_lemma_that_proves_it():
    lemmas = set(re.findall(r"\*\*Lemma (\d+)", PROOFS))
    for releases, _, cells in fork_rows():
        named = {number for group in re.findall(r"\(Lemmas? ([\d, ]+)\)", cells[0]) for number in group.split(", ")}
        assert named <= lemmas, releases
        assert named or releases == ["p2b/paper"], releases
