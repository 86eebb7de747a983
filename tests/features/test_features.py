"""Features: declarations and values are checked, counted, and become rows and blocks that mean one thing."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.features.checks import BadDeclaration, BadRows, BadValue, FeatureError
from hushstream.features.kinds import KINDS, Outcome
from hushstream.features.reference import kind_rows
from hushstream.features.schema import FeatureSchema, declare

DECLARED: dict[str, dict[str, Any]] = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "se", "no", "dk", "nl", "at"]},
    "age": {"kind": "number", "range": [16, 96]},
    "spend": {"kind": "number", "range": [1, 10000], "scale": "log", "nodes": 32},
    "member": {"kind": "boolean"},
    "hour": {"kind": "time_of_day"},
    "day": {"kind": "day_of_week"},
    "likes": {
        "kind": "tags",
        "vocabulary": ["books", "games", "toys", "food", "music", "film", "art", "sport", "tv"],
        "most": 3,
    },
    "text": {"kind": "embedding", "dimension": 4},
    "visits": {"kind": "histogram", "bins": 3},
    "country-age": {"kind": "cross", "of": ["country", "age"]},
    "day-hour": {"kind": "cross", "of": ["day", "hour"]},
}
SCHEMA = declare(DECLARED)
FULL: dict[str, Any] = {
    "country": "fr",
    "age": 56,
    "spend": 100.0,
    "member": True,
    "hour": 13.0,
    "day": "mon",
    "likes": ["toys", "tv"],
    "text": [0.6, -0.8, 0.0, 0.0],
    "visits": [1, 1, 2],
}
PLAIN = [name for name, one in DECLARED.items() if one["kind"] != "cross"]

TAG = st.sampled_from([*DECLARED["likes"]["vocabulary"], "unheard of"])
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "country": st.none() | st.sampled_from(DECLARED["country"]["vocabulary"]) | st.text(max_size=20),
        "age": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-200, 200),
        "spend": st.none() | st.floats(0.001, 1e9),
        "member": st.none() | st.booleans(),
        "hour": st.none() | st.floats(-100, 100) | st.sampled_from(["00:00", "23:59", "7:30"]),
        "day": st.none() | st.integers(1, 7) | st.sampled_from(["mon", "Sunday"]),
        "likes": st.none() | st.lists(TAG, max_size=6),
        "text": st.none() | st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4),
        "visits": st.none() | st.lists(st.floats(0, 1e6), min_size=3, max_size=3),
    },
)


def _block(schema: FeatureSchema, values: dict[str, Any], name: str) -> np.ndarray:
    """The dense shares of one feature's block."""
    found = schema.blocks(schema.read(schema.encode(values).row))
    number, block = next((i, b) for i, b in enumerate(schema.table) if b.name == name)
    dense = np.zeros(block.cells)
    across = slice(block.first_place, block.first_place + block.places)
    np.add.at(dense, found.cells[0, across] - block.first_cell, found.parts[0, across] / found.wholes[0, number])
    return dense


class TestEveryKind:
    """What holds for every kind of feature."""

    @given(VALUES)
    @settings(max_examples=40, deadline=None)
    def test_every_row_that_is_encoded_is_read_and_its_blocks_are_shares(self, values):
        encoded = SCHEMA.encode(values)
        assert len(encoded.row) == SCHEMA.row_bytes
        rows = SCHEMA.read(encoded.row)
        found = SCHEMA.blocks(rows)
        assert rows.tobytes() == encoded.row
        assert (found.cells >= 0).all()
        assert (found.cells < SCHEMA.cells).all()
        for number, block in enumerate(SCHEMA.table):
            across = slice(block.first_place, block.first_place + block.places)
            assert (found.cells[:, across] >= block.first_cell).all()
            assert (found.cells[:, across] < block.first_cell + block.cells).all()
            whole = found.wholes[0, number]
            total = int(np.abs(found.parts[0, across]).sum())
            assert total == whole if block.complete else total in (0, whole)
            assert block.signed or (found.parts[0, across] >= 0).all()
            assert np.linalg.norm(found.values[0, across]) <= 1 + 1e-12

    @given(VALUES)
    @settings(max_examples=40, deadline=None)
    def test_the_values_of_a_row_are_encoded_to_that_row_again(self, values):
        """Numbers of a vector to their last unit: they are rounded, and scaled again."""
        (row,) = SCHEMA.read(SCHEMA.encode(values).row)
        (again,) = SCHEMA.read(SCHEMA.encode(json.loads(json.dumps(SCHEMA.values(row)))).row)
        for name in PLAIN:
            off = np.abs(np.subtract(row[name], again[name], dtype=np.int64)).max()
            assert off <= (1 if name in ("text", "visits") else 0), name

    @given(st.lists(VALUES, min_size=1, max_size=8))
    @settings(max_examples=40, deadline=None)
    def test_a_batch_of_columns_is_the_rows_one_by_one(self, values):
        single = [SCHEMA.encode(one) for one in values]
        batch = SCHEMA.encode_columns({name: [one.get(name) for one in values] for name in PLAIN})
        assert batch.rows.tobytes() == b"".join(one.row for one in single)
        for name in PLAIN:
            each = [one.outcomes.get(name, Outcome.KNOWN) for one in single]
            assert batch.counts[name].tolist() == [each.count(outcome) for outcome in Outcome]

    @given(st.lists(VALUES, min_size=1, max_size=8))
    @settings(max_examples=40, deadline=None)
    def test_blocks_of_many_rows_are_those_of_each(self, values):
        content = b"".join(SCHEMA.encode(one).row for one in values)
        together = SCHEMA.blocks(SCHEMA.read(content))
        for place, one in enumerate(values):
            alone = SCHEMA.blocks(SCHEMA.read(SCHEMA.encode(one).row))
            for many, single in zip(together, alone, strict=True):
                assert (many[place] == single[0]).all()

    @given(st.binary(min_size=0, max_size=3 * SCHEMA.row_bytes))
    @settings(max_examples=120, deadline=None)
    def test_bytes_that_no_value_encodes_to_are_refused_and_others_have_blocks(self, content):
        try:
            rows = SCHEMA.read(content)
        except BadRows:
            return
        found = SCHEMA.blocks(rows)
        assert (np.abs(found.parts) <= found.wholes.max(initial=1)).all()

    @pytest.mark.parametrize("name", PLAIN)
    def test_a_value_that_is_absent_is_missing_and_counted(self, name):
        absent = {key: value for key, value in FULL.items() if key != name}
        outcomes = SCHEMA.encode(absent).outcomes
        assert outcomes == {name: Outcome.MISSING}
        assert SCHEMA.encode({**FULL, name: None}).row == SCHEMA.encode(absent).row

    @pytest.mark.parametrize("name", PLAIN)
    @pytest.mark.parametrize(
        "value", [b"bytes", object(), {"a": 1}, 1 + 2j, math.nan, math.inf, 10**400, [math.nan] * 4]
    )
    def test_a_wrong_value_is_refused_at_once_and_named(self, name, value):
        with pytest.raises(BadValue) as refused:
            SCHEMA.encode({**FULL, name: value})
        assert str(refused.value).startswith(f"{name}: expected")
        assert ", got" in str(refused.value)
        assert len(str(refused.value)) < 200

    @pytest.mark.parametrize("name", PLAIN)
    def test_no_message_repeats_a_value(self, name):
        said = []
        for secret in ("s3cr3t-canary", ["s3cr3t-canary"], {"s3cr3t-canary": 1}):
            with contextlib.suppress(BadValue):
                SCHEMA.encode({name: secret})
                continue
            with pytest.raises(BadValue) as refused:
                SCHEMA.encode({name: secret})
            said.append(str(refused.value))
        assert said
        assert "canary" not in "".join(said)

    def test_every_kind_is_covered_here_and_in_the_reference(self):
        assert {one["kind"] for one in DECLARED.values()} == set(KINDS)
        assert [row.kind for row in kind_rows()] == list(KINDS)

    def test_every_cell_has_a_name_of_its_own(self):
        names = SCHEMA.cell_names()
        assert len(names) == len(set(names)) == SCHEMA.cells

    def test_cells_of_numbers_and_hours_are_named_by_the_values_that_fill_them(self):
        """A name says a value of which its cell holds more than any other, however few digits say it."""
        declared = {
            "age": {"kind": "number", "range": [16, 96]},
            "spend": {"kind": "number", "range": [1, 10_000], "scale": "log"},
            "year": {"kind": "number", "range": [2000.0, 2000.5], "nodes": 32},
            "hour": {"kind": "time_of_day"},
        }
        schema = declare(declared)
        for cell, (name, said) in enumerate(one.split(": ", 1) for one in schema.cell_names()):
            if said == "missing":
                continue
            value = said.removeprefix("about ")
            blocks = schema.blocks(schema.read(schema.encode({name: value if ":" in value else float(value)}).row))
            held = np.bincount(blocks.cells[0], blocks.values[0])
            assert held[cell] > 0.5, (name, said)
        assert "hour: about 4:00" in schema.cell_names()
        assert "age: about 96" in schema.cell_names()

    @pytest.mark.parametrize("content", [b"\xff" * SCHEMA.row_bytes, b"\x00" * (SCHEMA.row_bytes + 1)])
    def test_forged_rows_are_refused(self, content):
        with pytest.raises(BadRows):
            SCHEMA.read(content)


def test_a_category_knows_its_vocabulary_and_puts_all_else_into_one_cell():
    assert _block(SCHEMA, {"country": "se"}, "country").argmax() == 2
    assert SCHEMA.encode({**FULL, "country": "xx"}).outcomes == {"country": Outcome.UNKNOWN}
    assert (_block(SCHEMA, {"country": "xx"}, "country") == _block(SCHEMA, {}, "country")).all()


def test_a_whole_number_stands_for_its_digits():
    schema = declare({"shop": {"kind": "category", "vocabulary": [7, 8]}})
    assert schema.encode({"shop": 8}).row == schema.encode({"shop": "8"}).row
    assert schema.encode({"shop": np.int64(8)}).row == schema.encode({"shop": "8"}).row


@pytest.mark.parametrize(
    ("age", "nodes"), [(16, {0: 1.0}), (96, {7: 1.0}), (16 + 80 / 7, {1: 1.0}), (16 + 120 / 7, {1: 0.5, 2: 0.5})]
)
def test_hats_divide_a_number_between_its_two_nodes(age, nodes):
    dense = _block(SCHEMA, {"age": age}, "age")
    assert dense.sum() == pytest.approx(1.0, abs=1e-12)
    for node, share in nodes.items():
        assert dense[node] == pytest.approx(share, abs=1e-3)


def test_a_log_scale_divides_by_ratios():
    middle = _block(SCHEMA, {"spend": 100.0}, "spend")
    assert middle[15] == pytest.approx(0.5, abs=1e-3)
    assert middle[16] == pytest.approx(0.5, abs=1e-3)


def test_what_is_out_of_range_is_moved_to_its_end_and_counted():
    for beyond, end in ((-5, 16), (1e300, 96)):
        encoded = SCHEMA.encode({**FULL, "age": beyond})
        assert encoded.outcomes == {"age": Outcome.CLIPPED}
        assert encoded.row == SCHEMA.encode({**FULL, "age": end}).row


def test_the_day_is_a_circle():
    late, early = _block(SCHEMA, {"hour": 23.0}, "hour"), _block(SCHEMA, {"hour": -1}, "hour")
    assert (late == early).all()
    assert late[0] == pytest.approx(0.75)
    assert late[5] == pytest.approx(0.25)
    assert SCHEMA.encode({"hour": "23:00"}).row == SCHEMA.encode({"hour": 23}).row
    assert SCHEMA.encode({**FULL, "hour": 24}).outcomes == {"hour": Outcome.CLIPPED}
    for wrong in ("25", "25:00", "24:01", "12:60", "1:2:3", "-1:00", "noon", "१२:००"):
        with pytest.raises(BadValue, match="HH:MM"):
            SCHEMA.encode({"hour": wrong})


def test_days_have_names_and_iso_numbers():
    for number, names in enumerate(
        (("mon", "Monday"), ("tue", "tuesday"), ("WED",), ("thu",), ("fri",), ("sat",), ("sun",)), 1
    ):
        for name in names:
            assert SCHEMA.encode({"day": name}).row == SCHEMA.encode({"day": number}).row
    for wrong in (0, 8, 1.5, "someday", "m" * 1_000_000):
        with pytest.raises(BadValue, match="1 for Monday to 7"):
            SCHEMA.encode({"day": wrong})


def test_tags_share_alike_unknown_ones_are_left_out_and_the_first_count():
    dense = _block(SCHEMA, {"likes": ["toys", "tv"]}, "likes")
    assert dense[[2, 8]].tolist() == [0.5, 0.5]
    assert SCHEMA.encode({**FULL, "likes": ["toys", "cars"]}).outcomes == {"likes": Outcome.UNKNOWN}
    more = SCHEMA.encode({**FULL, "likes": ["tv", "art", "toys", "books"]})
    assert more.outcomes == {"likes": Outcome.CLIPPED}
    assert more.row == SCHEMA.encode({**FULL, "likes": ["tv", "art", "toys"]}).row
    assert SCHEMA.encode({"likes": []}).row == SCHEMA.encode({"likes": None}).row == SCHEMA.encode({"likes": {"x"}}).row
    assert SCHEMA.encode({"likes": ["tv", "tv", "tv", "tv"]}).row == SCHEMA.encode({"likes": ["tv"]}).row


def test_an_embedding_is_clipped_to_length_1_and_its_shares_have_signs():
    dense = _block(SCHEMA, {"text": [0.3, -0.1, 0.0, 0.0]}, "text")
    assert dense == pytest.approx([0.75, -0.25, 0, 0], abs=1e-3)
    long = SCHEMA.encode({**FULL, "text": [3e200, -4e200, 0, 0]})
    assert long.outcomes == {"text": Outcome.CLIPPED}
    values = SCHEMA.blocks(SCHEMA.read(long.row)).values
    assert values[0][np.abs(values[0] + 0.8) < 1e-3].size == 1


def test_a_histogram_takes_counts():
    assert _block(SCHEMA, {"visits": [1, 1, 2]}, "visits") == pytest.approx([0.25, 0.25, 0.5], abs=1e-4)
    assert SCHEMA.encode({"visits": [1, 1, 2]}).row == SCHEMA.encode({"visits": np.array([25, 25, 50])}).row
    assert not _block(SCHEMA, {"visits": [0, 0, 0]}, "visits").any()
    with pytest.raises(BadValue, match="at least 0"):
        SCHEMA.encode({"visits": [1, -1, 1]})


def test_a_cross_is_the_pair_of_its_levels():
    block = next(one for one in SCHEMA.table if one.name == "country-age")
    assert block.cells == 6 * 6
    # fr is the second country; 56 lies in the third of five parts of 16 to 96.
    assert _block(SCHEMA, {"country": "fr", "age": 56}, "country-age").argmax() == 1 * 6 + 2
    assert _block(SCHEMA, {"country": "at", "age": None}, "country-age").argmax() == 5 * 6 + 5
    assert _block(SCHEMA, {"day": 7, "hour": 23.9}, "day-hour").argmax() == 6 * 6 + 5
    assert not _block(SCHEMA, {"day": 7}, "day-hour").any()
    with pytest.raises(BadValue, match="no value of a cross"):
        SCHEMA.encode({"country-age": 3})


def test_float_columns_have_gaps_where_they_are_nan():
    encoded = SCHEMA.encode_columns({"age": np.array([20.0, np.nan, 500.0]), "hour": np.array([1.0, np.nan, 30.0])})
    assert encoded.counts["age"].tolist() == [1, 1, 0, 1]
    assert encoded.counts["hour"].tolist() == [1, 1, 0, 1]
    assert encoded.share("age", Outcome.CLIPPED) == pytest.approx(1 / 3)
    one_by_one = [
        SCHEMA.encode({"age": age, "hour": hour}).row for age, hour in ((20.0, 1.0), (None, None), (500.0, 30.0))
    ]
    assert encoded.rows.tobytes() == b"".join(one_by_one)
    with pytest.raises(BadValue, match="infinite"):
        SCHEMA.encode_columns({"age": np.array([np.inf])})
    with pytest.raises(BadValue, match="one length"):
        SCHEMA.encode_columns({"age": [1, 2], "hour": [1]})


def test_ids_of_a_megabyte_and_unknown_names_are_refused_without_being_repeated():
    megabyte = "x" * 1_000_000
    for values in ({"country": megabyte}, {"likes": [megabyte]}, {megabyte: 1}, {"country": 10**1_000_000}):
        with pytest.raises(BadValue) as refused:
            SCHEMA.encode(values)
        assert len(str(refused.value)) < 300
    for name, got in {
        "contry": '"contry"',
        "utm_2": '"utm_2"',
        "ann@shop.example": "another",
        "a1234": "another",
    }.items():
        with pytest.raises(BadValue, match=f"expected names among age, country, day.*, got {got}$"):
            SCHEMA.encode({name: "de"})


MANY_TAGS = [f"tag {number}" for number in range(21)]
OTHER_SCHEMAS = [
    declare({"member": {"kind": "boolean"}}),
    declare(
        {"text": {"kind": "embedding", "dimension": 3}, "topics": {"kind": "tags", "vocabulary": MANY_TAGS, "most": 21}}
    ),
    declare(
        {
            "a": {"kind": "time_of_day"},
            "b": {"kind": "number", "range": [0, 1], "nodes": 2},
            "c": {"kind": "day_of_week"},
            "d": {"kind": "boolean"},
            **{
                f"x-{left}{right}": {"kind": "cross", "of": [left, right]}
                for left in "abcd"
                for right in "abcd"
                if left < right
            },
        }
    ),
]


@pytest.mark.parametrize("schema", [SCHEMA, *OTHER_SCHEMAS])
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 90))
@settings(max_examples=40, deadline=None)
def test_rows_are_read_with_the_bits_of_their_blocks_whatever_is_read_together(schema, seed, cut):
    rng = np.random.default_rng(seed)
    shape = (90, schema.row_bytes)
    raw = rng.integers(0, 256, shape, np.uint8) >> rng.choice([0, 5, 7], shape).astype(np.uint8)
    raw[rng.random(shape) < 0.1] = 255
    pieces = [raw[low : low + cut] for low in range(0, 90, cut)]
    good = np.concatenate([schema.readable(piece) for piece in pieces])
    for row, fine in zip(raw, good, strict=True):
        with contextlib.nullcontext() if fine else pytest.raises(BadRows):
            schema.read(row.tobytes())
    valid = raw[good]
    blocks = schema.blocks(schema.read(valid.tobytes()))
    parts = [schema.compiled.read(valid[low : low + cut].tobytes()) for low in range(0, len(valid), cut)]
    if parts:
        cells, powers = map(np.concatenate, zip(*parts, strict=True))
        values = powers[..., 0]
        assert (powers[..., 1] == values * values).all()
        assert (cells[:, 1:] == blocks.cells + 1).all()
        assert values[:, 1:].tobytes() == blocks.values.astype(np.float32).tobytes()
        assert (cells[:, 0] == 0).all()
        assert (values[:, 0] == 1).all()
    lost = [np.stack(schema.compiled.checked(piece.tobytes())[1:], axis=1).tolist() for piece in pieces]
    assert not len(schema.readable(raw[:0]))
    alone = [[int(one[0]) for one in schema.compiled.checked(row.tobytes())[1:]] for row in raw]
    assert [one for piece in lost for one in piece] == alone


def test_the_digest_does_not_depend_on_the_order_of_names_and_depends_on_all_else():
    turned = declare(dict(reversed(DECLARED.items())))
    assert turned.digest == SCHEMA.digest
    assert turned.table == SCHEMA.table
    assert turned.encode(FULL).row == SCHEMA.encode(FULL).row
    defaults = declare({**DECLARED, "age": {"kind": "number", "range": [16.0, 96], "scale": "linear", "nodes": 8}})
    assert defaults.digest == SCHEMA.digest
    digests = {SCHEMA.digest}
    for name, changed in (
        ("country", {"kind": "category", "vocabulary": ["fr", "de", "se", "no", "dk", "nl", "at"]}),
        ("age", {"kind": "number", "range": [16, 97]}),
        ("spend", {"kind": "number", "range": [1, 10000], "nodes": 32}),
        ("likes", {**DECLARED["likes"], "most": 4}),
        ("member", {"kind": "day_of_week"}),
        ("day-hour", {"kind": "cross", "of": ["hour", "day"]}),
    ):
        digests.add(declare({**DECLARED, name: changed}).digest)
    assert len(digests) == 7


def test_a_schema_is_declared_again_from_its_canonical_form():
    again = declare(json.loads(SCHEMA.canonical)["features"])
    assert again == SCHEMA
    assert again.digest == SCHEMA.digest


def test_the_digest_is_computed_once(monkeypatch):
    """It was written out as JSON at every fold of a learner."""
    monkeypatch.setattr(json, "dumps", lambda *given, **settings: pytest.fail("computed anew"))
    assert SCHEMA.digest == SCHEMA.digest


def test_the_digest_of_a_known_declaration_stays():
    assert declare({"age": {"kind": "number", "range": [16, 96]}}).digest.hex() == "c1d475acca8001f69e228199d6350682"


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        ([], "expected 1 to 64 names"),
        ({}, "expected 1 to 64 names"),
        ({f"f{n}": {"kind": "boolean"} for n in range(65)}, "got 65"),
        ({"a b": {"kind": "boolean"}}, "letters, digits"),
        ({"x" * 1_000_000: {"kind": "boolean"}}, "letters, digits"),
        ({1: {"kind": "boolean"}}, "letters, digits"),
        ({"a": "boolean"}, "features.a: expected a kind"),
        ({"a": {}}, "features.a.kind: expected one of category, number"),
        ({"a": {"kind": "colour"}}, "features.a.kind: expected one of category"),
        ({"a": {"kind": "boolean", "range": [0, 1]}}, "features.a: expected keys among"),
        ({"a": {"kind": "category"}}, "expected the key vocabulary"),
        ({"a": {"kind": "category", "vocabulary": []}}, "list of 1 to 4,096"),
        ({"a": {"kind": "category", "vocabulary": "de"}}, "list of 1 to 4,096"),
        (
            {"a": {"kind": "category", "vocabulary": ["de", "fr", "de"]}},
            "entry 3: expected distinct entries, got that of 1",
        ),
        ({"a": {"kind": "category", "vocabulary": [7, "7"]}}, "distinct"),
        ({"a": {"kind": "category", "vocabulary": ["se", False]}}, "entry 2: expected a text, got a boolean"),
        ({"a": {"kind": "category", "vocabulary": ["x" * 1_000_000]}}, "at most 128 bytes"),
        ({"a": {"kind": "category", "vocabulary": ["x", None]}}, "entry 2: expected a text, got nothing"),
        ({"a": {"kind": "number", "range": [1, 1]}}, "low end below the high end"),
        ({"a": {"kind": "number", "range": [9, 1]}}, "low end below the high end"),
        ({"a": {"kind": "number", "range": [0, math.nan]}}, "two finite numbers"),
        ({"a": {"kind": "number", "range": [0, math.inf]}}, "two finite numbers"),
        ({"a": {"kind": "number", "range": [-1e308, 1e308]}}, "differ as 64-bit numbers"),
        ({"a": {"kind": "number", "range": [1.0, 1.0 + 1e-15]}}, "differ as 64-bit numbers"),
        ({"a": {"kind": "number", "range": [0]}}, "expected \\[low, high\\]"),
        ({"a": {"kind": "number", "range": [0, 9], "scale": "log"}}, "above 0 on a log scale"),
        ({"a": {"kind": "number", "range": [0, 9], "scale": "cubic"}}, "linear or log"),
        ({"a": {"kind": "number", "range": [0, 9], "nodes": 1}}, "from 2 to 64"),
        ({"a": {"kind": "number", "range": [0, 9], "nodes": True}}, "from 2 to 64"),
        ({"a": {"kind": "tags", "vocabulary": ["x"], "most": 2}}, "from 1 to 1"),
        ({"a": {"kind": "tags", "vocabulary": ["x"], "most": 1, "redundancy": 1.5}}, "a number from 0 to 1"),
        ({"a": {"kind": "tags", "vocabulary": ["x"], "most": 1, "redundancy": float("nan")}}, "a number from 0 to 1"),
        ({"a": {"kind": "tags", "vocabulary": ["x"], "most": 1, "redundancy": True}}, "a number from 0 to 1"),
        ({"a": {"kind": "embedding", "dimension": 0}}, "from 1 to 1,024"),
        ({"a": {"kind": "histogram", "bins": 1}}, "from 2 to 1,024"),
        ({"a": {"kind": "boolean"}, "b": {"kind": "cross", "of": ["a", "c"]}}, "features.b.of: expected declared"),
        ({"a": {"kind": "boolean"}, "b": {"kind": "cross", "of": ["a", "a"]}}, "two different"),
        ({"a": {"kind": "boolean"}, "b": {"kind": "cross", "of": "a"}}, "names of two"),
        ({"b": {"kind": "cross", "of": ["a", "c"]}}, "crosses alone"),
        (
            {
                "a": {"kind": "boolean"},
                "e": {"kind": "embedding", "dimension": 3},
                "b": {"kind": "cross", "of": ["a", "e"]},
            },
            "got a embedding",
        ),
        (
            {f"t{n}": {"kind": "category", "vocabulary": [str(m) for m in range(4096)]} for n in range(16)},
            "at most 65,535 coordinates",
        ),
    ],
)
def test_an_impossible_declaration_is_refused_with_its_key(declaration, said):
    with pytest.raises(BadDeclaration, match=said) as refused:
        declare(declaration)
    assert len(str(refused.value)) < 300


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from(list(KINDS)),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["kind", "vocabulary", "range", "of", "most", "nodes", "a", "b"]), inner, max_size=5
            )
        ),
        max_leaves=20,
    )
)
@settings(max_examples=120, deadline=None)
def test_whatever_is_declared_is_a_schema_or_a_clear_error(declaration):
    try:
        schema = declare(declaration)
    except FeatureError:
        return
    assert schema.blocks(schema.read(schema.encode({}).row)).cells.shape == (1, schema.places)


def test_bytes_on_the_wire_are_those_that_the_reference_states():
    stated = {row.kind: row.row_bytes for row in kind_rows()}
    assert stated == {
        "category": 2,
        "number": 2,
        "boolean": 1,
        "time_of_day": 2,
        "day_of_week": 1,
        "tags": 1,
        "embedding": 32,
        "histogram": 20,
        "cross": 0,
    }
    assert SCHEMA.row_bytes == 2 + 2 + 2 + 1 + 2 + 1 + 2 + 8 + 6


def test_a_declaration_without_redundancy_has_the_digest_that_it_had():
    tags = {"kind": "tags", "vocabulary": ["x", "y"], "most": 2}
    assert "redundancy" not in declare({"a": tags}).plain["a"]
    assert declare({"a": {**tags, "redundancy": 0}}).digest == declare({"a": tags}).digest
    again = declare({"a": {**tags, "redundancy": 0.2}})
    assert again.digest != declare({"a": tags}).digest
    assert declare(again.plain) == again
