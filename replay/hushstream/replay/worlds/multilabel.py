"""TMC2007 and MediaMill as bandits: multi-label classification with bandit feedback (Malekzadeh et al. 2020, 5.2).

Conversion. An instance is one round of one user: the context is made of the words, an arm is a label, and
the reward is 1 if the label shown is among the instance's true labels. Instances are dealt without
replacement: a seeded permutation of all rows (TMC2007 has 28,596, MediaMill 43,907), round by round, so that no
two users (and no two rounds) share a row, and a run of fewer rounds sees the beginning of a longer one.

Arms are the K most frequent labels (ties by name), numbered in a seeded order: a learner that breaks ties by
the lowest number would otherwise begin with the commonest label, which alone is right in 57 % of TMC2007's. An
instance may have none of the K labels, which is then a loss for every arm.

Contexts are normalised histograms over d binary attributes, on the grid of q digits. The attributes of
TMC2007 are its 500 words. Those of MediaMill say for each of its 120 visual features, which lie in [0, 1], whether it
is above ``present_above`` (0.45, as in the public code of the paper).

They are the d single words with the highest mean chi-squared statistic against the labels, as the public code of the
paper selects them. The selection looks at the labels of all rows, also of users who are evaluated later; no guarantee
covers it. It is right for reproducing the paper's figures on a published corpus, and wrong as a description of a
deployment.

An instance without any of the words gets the even histogram, as in the public code. That code merges MediaMill's
labels into 40 groups; here, as in the paper's text and as for TMC2007, the arms are the most frequent labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hushstream.replay.datasets.store import locate
from hushstream.replay.worlds.arff import ArffTable, read_arff
from hushstream.replay.worlds.draws import Draws, IntArray, on_grid
from hushstream.replay.worlds.world import WorldError, check_request, require_number

LABEL_PREFIX = "class"
LABELS = 22
MEDIAMILL_FEATURES, MEDIAMILL_LABELS = 120, 101

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MultiLabelWorld:
    """Labelled instances dealt to users; see the module for the conversion.

    Attributes:
        name: dataset and how its features were chosen, as figures must name them.
        labels: names of the arms.
        table_contexts: (rows, d) contexts of all instances.
        table_labels: (rows, K) truth of all instances.
        dealt: (rounds, users) row numbers.
    """

    name: str
    users: int
    rounds: int
    labels: tuple[str, ...]
    table_contexts: npt.NDArray[np.float32] = field(repr=False, compare=False)
    table_labels: npt.NDArray[np.bool_] = field(repr=False, compare=False)
    dealt: npt.NDArray[np.int64] = field(repr=False, compare=False)
    public: bool = True

    @property
    def dimension(self) -> int:
        """d, the number of words."""
        return int(self.table_contexts.shape[1])

    @property
    def arms(self) -> int:
        """K, the number of labels."""
        return int(self.table_labels.shape[1])

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, d) histograms of the instances that ``users`` (n,) hold at one round."""
        check_request(self, users, round_index)
        return np.asarray(self.table_contexts[self.dealt[round_index, users]], dtype=np.float32)

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return (n,) ones where the label shown is a true one."""
        check_request(self, users, round_index, arms)
        return np.asarray(self.table_labels[self.dealt[round_index, users], arms], dtype=np.float64)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """The same as the rewards: given the instance, nothing is random."""
        return self.rewards(users, round_index, arms)

    def eligible(self, users: IntArray, round_index: int) -> None:
        """Every label may be shown to everyone."""
        return


def tmc2007(
    *,
    users: int = 275,
    rounds: int = 100,
    dimension: int = 20,
    arms: int = 20,
    digits: int = 1,
    seed: int = 0,
    data_dir: str | None = None,
) -> MultiLabelWorld:
    """Build the TMC2007 world; users * rounds may not exceed the 28,596 rows.

    Args:
        users: agents; the paper has 275.
        rounds: T, instances an agent; the paper goes up to 100.
        dimension: d, words of a context.
        arms: K, labels; at most 22.
        digits: q, decimal digits of a context.
        seed: decides who gets which instance.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: an option is out of range.
    """
    table = read_corpus(locate("tmc2007", data_dir))
    return multilabel_world(table, users, rounds, dimension, arms, digits, seed)


def mediamill(
    *,
    users: int = 425,
    rounds: int = 100,
    dimension: int = 20,
    arms: int = 40,
    present_above: float = 0.45,
    digits: int = 1,
    seed: int = 0,
    data_dir: str | None = None,
) -> MultiLabelWorld:
    """Build the MediaMill world; users * rounds may not exceed the 43,907 rows.

    Args:
        users: agents; the paper has 425.
        rounds: T, instances an agent; the paper goes up to 100.
        dimension: d, features of a context.
        arms: K, labels; at most 101.
        present_above: the value above which a feature counts as present.
        digits: q, decimal digits of a context.
        seed: decides who gets which instance.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent.
        WorldError: a file is malformed, or an option is out of range.
    """
    require_number("mediamill", "present_above", present_above, 0.0, 1.0)
    table = read_mediamill(locate("mediamill", data_dir))
    return labelled_world(
        "mediamill",
        table.numbers > present_above,
        table.labels,
        table.label_names,
        users,
        rounds,
        dimension,
        arms,
        digits,
        seed,
    )


def read_mediamill(folder: Path) -> ArffTable:
    """Read Mulan's training and test file, the training rows first, or the one file of all rows.

    Raises:
        WorldError: a file is malformed, does not have 120 features and 101 labels, or the two files list different
            attributes.
    """
    paths = [folder / f"mediamill-{part}.arff" for part in ("train", "test")]
    if not all(path.is_file() for path in paths):
        paths = [folder / "mediamill.arff"]
    return _dense_parts(tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=1)
def _dense_parts(parts: tuple[tuple[Path, int], ...]) -> ArffTable:
    """Read the parts of MediaMill; cached by path and time of change, as a figure builds the world for each seed."""
    tables = [read_arff(path) for path, _ in parts]
    for (path, _), table in zip(parts, tables, strict=True):
        found = table.numbers.shape[1], table.labels.shape[1]
        if found != (MEDIAMILL_FEATURES, MEDIAMILL_LABELS):
            raise WorldError(
                f"{path}: expected {MEDIAMILL_FEATURES} numeric attributes and {MEDIAMILL_LABELS} of {{0,1}}, "
                f"got {found[0]} and {found[1]}"
            )
    return _joined("mediamill", tables)


def _joined(dataset: str, parts: Sequence[ArffTable]) -> ArffTable:
    first = parts[0]
    if any((one.number_names, one.label_names) != (first.number_names, first.label_names) for one in parts):
        raise WorldError(f"{dataset}: the training and test file list different attributes")
    numbers, labels = np.concatenate([one.numbers for one in parts]), np.concatenate([one.labels for one in parts])
    return ArffTable(first.number_names, first.label_names, numbers, labels)


def read_corpus(folder: Path) -> ArffTable:
    """Read both parts of the corpus, the training rows first.

    Raises:
        WorldError: a part is malformed, or the two parts have different attributes.
    """
    parts = [read_arff(folder / f"tmc2007-500-{part}.arff") for part in ("train", "test")]
    return _joined("tmc2007", parts)


def split_labels(table: ArffTable) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], tuple[str, ...]]:
    """Return words (n, m), labels (n, 22) and label names; labels are the attributes class01 .. class22.

    Raises:
        WorldError: the last 22 attributes are not these labels, or there is no word.
    """
    names = tuple(f"{LABEL_PREFIX}{number:02d}" for number in range(1, LABELS + 1))
    if table.number_names or table.label_names[-LABELS:] != names or len(table.label_names) == LABELS:
        raise WorldError(f"expected words, then the labels {names[0]} .. {names[-1]} as the last attributes")
    return table.labels[:, :-LABELS], table.labels[:, -LABELS:], names


def multilabel_world(
    table: ArffTable, users: int, rounds: int, dimension: int, arms: int, digits: int, seed: int
) -> MultiLabelWorld:
    """Build the world from a corpus of TMC2007 already read; options as in `tmc2007`.

    Raises:
        WorldError: an option is out of range for this corpus.
    """
    words, labels, names = split_labels(table)
    return labelled_world("tmc2007", words, labels, names, users, rounds, dimension, arms, digits, seed)


def labelled_world(
    dataset: str,
    words: Booleans,
    labels: Booleans,
    names: tuple[str, ...],
    users: int,
    rounds: int,
    dimension: int,
    arms: int,
    digits: int,
    seed: int,
) -> MultiLabelWorld:
    """Build the world of labelled instances; options as in `tmc2007`.

    Args:
        dataset: the name of the dataset.
        words: (n, m) which words (or features) an instance has.
        labels: (n, l) its labels.
        names: l names of labels.

    Raises:
        WorldError: an option is out of range for these instances.
    """
    for option, value, most in (
        ("arms", arms, labels.shape[1]),
        ("dimension", dimension, words.shape[1]),
        ("digits", digits, 6),
    ):
        least = 1 if option == "digits" else 2
        require_number(dataset, option, value, least, most)
    dealt = deal(dataset, words.shape[0], users, rounds, seed)
    frequent = np.argsort(-labels.sum(axis=0), kind="stable")[:arms]
    chosen = Draws(seed, "arms").generator().permutation(frequent)
    best = np.sort(np.argsort(-chi2_scores(words, labels), kind="stable")[:dimension])
    return MultiLabelWorld(
        name=f"{dataset}/chi2",
        users=users,
        rounds=rounds,
        labels=tuple(names[label] for label in chosen),
        table_contexts=on_grid(words[:, best].astype(np.float32), digits),
        table_labels=np.ascontiguousarray(labels[:, chosen]),
        dealt=dealt,
    )


def deal(dataset: str, rows: int, users: int, rounds: int, seed: int) -> npt.NDArray[np.int64]:
    """Deal row numbers to users without replacement: (rounds, users). Fewer rounds give the first rows of more.

    Raises:
        WorldError: users * rounds is above the number of rows.
    """
    for option, value in (("users", users), ("rounds", rounds)):
        require_number(dataset, option, value, 1, rows)
    if users * rounds > rows:
        raise WorldError(
            f"{dataset}: users * rounds must be in 1..{rows} (instances are dealt once), got {users} * {rounds}"
        )
    permutation = Draws(seed, "instances").generator().permutation(rows)
    return permutation[: users * rounds].reshape(rounds, users)


def chi2_scores(words: npt.NDArray[np.bool_], labels: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return, for each word, the mean over labels of the chi-squared statistic of its counts by label value.

    For a label and a word the observed counts are the word's occurrences in rows with and without the
    label; the expected ones are its occurrences times the share of such rows. Constant labels score 0.

    Args:
        words: (n, m) booleans.
        labels: (n, l) booleans.

    Returns:
        (m,) float64.
    """
    counts = words.sum(axis=0, dtype=np.float64)
    with_label = labels.T.astype(np.float32) @ words.astype(np.float32)
    share = labels.mean(axis=0, dtype=np.float64)[:, None]
    scores = np.zeros(with_label.shape)
    for observed, portion in ((with_label.astype(np.float64), share), (counts - with_label, 1.0 - share)):
        expected = portion * counts
        scores += np.divide((observed - expected) ** 2, expected, out=np.zeros_like(scores), where=expected > 0)
    return np.asarray(scores.mean(axis=0), dtype=np.float64)
