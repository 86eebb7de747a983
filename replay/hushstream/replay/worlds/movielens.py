"""MovieLens-100K as a bandit: which kind of film to recommend to whom.

Conversion. A user's ratings are cut in time: the earlier part (``history``) is what the service knows, the
later part answers. An arm is a kind of film; showing it at a round reveals one of the user's later ratings
of a film of that kind, and the reward is 1 if they gave it at least ``like_at`` stars. Which rating a round
reveals is fixed by a keyed order of their later ratings of that kind: each is used once before any is used
again. So every reward is a rating that the user really gave, and no rating serves both as context and as
answer. A kind of which a user has no later rating is not eligible for them.

Kinds (numbered in a seeded order, so that breaking ties by number favours none):

* ``arms_by="groups"`` (default): K groups of films by seeded k-means on genres, popularity and share of
  likes in the earlier ratings. They differ in how well they are liked, so there is something to learn from
  others.
* ``arms_by="genres"``: the K most frequent genres; a film counts for each of its genres. Genres are liked
  almost equally, so a shared model brings next to nothing here.

The context is a normalised histogram on the grid of q digits over the d most frequent genres: the user's
share of earlier likes in each genre (a film of three genres counts a third for each), divided by the share
that the genre has in all earlier likes. Without that division the histograms are nearly equal, since most
people mostly watch drama and comedy. Groups and genre shares come from the earlier ratings of all users and
are treated as public.

A limit of these rewards: people rate films that they chose to see. So a reward says how the user likes films of that
kind that they would pick themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hushstream.replay.datasets.store import locate
from hushstream.replay.worlds.draws import Draws, IntArray, on_grid
from hushstream.replay.worlds.world import WorldError, check_request, require_number

ARMS_BY = ("groups", "genres")

_UNKNOWN_GENRE = "unknown"
_MOST_GROUPS = 100
# Weights of the three kinds of features when films are grouped, chosen so that each has an influence.
_GENRE_WEIGHT, _LIKING_WEIGHT, _POPULARITY_WEIGHT = 0.5, 4.0, 0.3
# A film's share of likes is shrunk to the mean as if it had four more ratings; otherwise one rating could decide it.
_PRIOR_RATINGS = 4.0
_RATING_FIELDS = 4
_ITEM_FIELDS_BEFORE_GENRES = 5


@dataclass(frozen=True, slots=True)
class Ratings:
    """The ratings of one release of MovieLens-100K.

    Attributes:
        users: (n,) user numbers from 0.
        items: (n,) item numbers from 0.
        stars: (n,) 1..5.
        seconds: (n,) Unix time.
        genres: (items, g) booleans.
        genre_names: g names.
    """

    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    stars: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.int64]
    genres: npt.NDArray[np.bool_]
    genre_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilmWorld:
    """Users who answer a kind of film with a rating they gave; see the module for the conversion.

    Attributes:
        arms_by: what the arms are.
        kinds: names of the arms.
        user_contexts: (users, d) contexts.
        answer_start: (users, K) where a user's later ratings of a kind start in ``answers``.
        answer_count: (users, K) how many there are.
        answers: likes (0 or 1), in the order in which rounds reveal them.
    """

    users: int
    rounds: int
    arms_by: str
    kinds: tuple[str, ...]
    user_contexts: npt.NDArray[np.float32] = field(repr=False, compare=False)
    answer_start: npt.NDArray[np.int64] = field(repr=False, compare=False)
    answer_count: npt.NDArray[np.int64] = field(repr=False, compare=False)
    answers: npt.NDArray[np.float64] = field(repr=False, compare=False)
    public: bool = True

    @property
    def name(self) -> str:
        """The dataset and the kind of its arms, as figures must name them."""
        return f"ml-100k/{self.arms_by}"

    @property
    def dimension(self) -> int:
        """d, the number of genres in a context."""
        return int(self.user_contexts.shape[1])

    @property
    def arms(self) -> int:
        """K, the number of kinds that may be recommended."""
        return len(self.kinds)

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, d) genre histograms of ``users`` (n,); the same at every round."""
        check_request(self, users, round_index)
        return self.user_contexts[users]

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return (n,) ones where the rating that this round reveals is a like.

        Raises:
            WorldError: an arm is not eligible for its user.
        """
        count = self._counts(users, round_index, arms)
        return np.asarray(self.answers[self.answer_start[users, arms] + round_index % count], dtype=np.float64)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) shares of likes among the user's later ratings of the kind (mean over seeds)."""
        count = self._counts(users, round_index, arms)
        start = self.answer_start[users, arms]
        running = np.concatenate(([0.0], np.cumsum(self.answers)))
        return np.asarray((running[start + count] - running[start]) / count, dtype=np.float64)

    def eligible(self, users: IntArray, round_index: int) -> list[bytes]:
        """Return the bitmasks of the kinds of which each user has a later rating."""
        check_request(self, users, round_index)
        packed = np.packbits(self.answer_count[users] > 0, axis=1, bitorder="little")
        return [row.tobytes() for row in packed]

    def _counts(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.int64]:
        check_request(self, users, round_index, arms)
        count = self.answer_count[users, arms]
        if (count == 0).any():
            raise WorldError(f"{self.name}: an arm was shown to a user for whom it is not eligible")
        return count


def movielens_100k(
    *,
    users: int | None = None,
    rounds: int = 10,
    dimension: int = 10,
    arms: int = 10,
    arms_by: str = "groups",
    like_at: int = 4,
    history: float = 0.5,
    digits: int = 1,
    seed: int = 0,
    data_dir: str | None = None,
) -> FilmWorld:
    """Build the MovieLens-100K world.

    Args:
        users: how many of the 943 users, in a seeded order; default all.
        rounds: T, rounds a user.
        dimension: d, genres in a context, the most frequent ones; at most 18.
        arms: K; at most 100 groups or 18 genres.
        arms_by: ``groups`` or ``genres``; see the module.
        like_at: stars from which a rating is a like.
        history: share of each user's ratings, the earliest, that makes the context.
        digits: q, decimal digits of a context.
        seed: the order of users and of the answers.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: an option is out of range.
    """
    ratings = read_ratings(locate("ml-100k", data_dir))
    return film_world(ratings, users, rounds, dimension, arms, arms_by, like_at, history, digits, seed)


def read_ratings(folder: Path) -> Ratings:
    """Read ``u.data``, ``u.item`` and ``u.genre``; items keep the numbers of the release minus one.

    Raises:
        WorldError: a line is malformed; the message names file and line.
    """
    names = tuple(line.split("|")[0] for line in _lines(folder / "u.genre"))
    genres = []
    for number, line in enumerate(_lines(folder / "u.item"), start=1):
        flags = line.split("|")[_ITEM_FIELDS_BEFORE_GENRES:]
        if len(flags) != len(names) or not set(flags) <= {"0", "1"}:
            raise WorldError(f"{folder / 'u.item'}, line {number}: expected {len(names)} genre flags of 0 or 1")
        genres.append([flag == "1" for flag in flags])
    rows = []
    for number, line in enumerate(_lines(folder / "u.data"), start=1):
        fields = line.split("\t")
        if len(fields) != _RATING_FIELDS or not all(entry.isdecimal() for entry in fields):
            raise WorldError(f"{folder / 'u.data'}, line {number}: expected user, item, stars and time")
        rows.append([int(entry) for entry in fields])
    table = np.array(rows, dtype=np.int64).reshape(-1, _RATING_FIELDS)
    if not len(table) or table[:, 1].max() > len(genres):
        raise WorldError(f"{folder}: expected ratings of the {len(genres)} items listed, got others or none")
    return Ratings(table[:, 0] - 1, table[:, 1] - 1, table[:, 2], table[:, 3], np.array(genres), names)


def film_world(
    ratings: Ratings,
    users: int | None,
    rounds: int,
    dimension: int,
    arms: int,
    arms_by: str,
    like_at: int,
    history: float,
    digits: int,
    seed: int,
) -> FilmWorld:
    """Build the world from ratings already read; options as in `movielens_100k`.

    Raises:
        WorldError: an option is out of range, or a user has no later rating of any arm.
    """
    everyone = int(ratings.users.max()) + 1
    named = [index for index, name in enumerate(ratings.genre_names) if name != _UNKNOWN_GENRE]
    users = everyone if users is None else users
    if arms_by not in ARMS_BY:
        raise WorldError(f"ml-100k: arms_by must be one of {', '.join(ARMS_BY)}, got {arms_by!r}")
    for option, value, least, most in (
        ("users", users, 1, everyone),
        ("rounds", rounds, 1, 2**32),
        ("dimension", dimension, 2, len(named)),
        ("arms", arms, 2, _MOST_GROUPS if arms_by == "groups" else len(named)),
        ("like_at", like_at, 1, 5),
        ("history", history, 0.05, 0.95),
        ("digits", digits, 1, 6),
    ):
        require_number("ml-100k", option, value, least, most)
    earlier = _is_earlier(ratings, history)
    by_frequency = sorted(named, key=lambda genre: -int(ratings.genres[ratings.items, genre].sum()))
    likes = ratings.stars >= like_at
    order = Draws(seed, "users").generator().permutation(everyone)[:users]
    if arms_by == "groups":
        member = _film_groups(ratings, likes, earlier, arms, seed)
        kinds = [f"group {number}" for number in range(arms)]
    else:
        member = ratings.genres[:, by_frequency[:arms]]
        kinds = [ratings.genre_names[genre] for genre in by_frequency[:arms]]
    numbered = Draws(seed, "arms").generator().permutation(arms)
    member, kinds = member[:, numbered], [kinds[number] for number in numbered]
    start, count, answers = _answers(ratings, likes, ~earlier, order, member, kinds, seed)
    if not count.any(axis=1).all():
        raise WorldError("ml-100k: a user has no later rating of any arm; ask for more arms or less history")
    return FilmWorld(
        users=users,
        rounds=rounds,
        arms_by=arms_by,
        kinds=tuple(kinds),
        user_contexts=_histograms(ratings, likes & earlier, by_frequency[:dimension], digits)[order],
        answer_start=start,
        answer_count=count,
        answers=answers,
    )


def _lines(path: Path) -> list[str]:
    try:
        # The release is in Latin-1; titles with accents would stop a UTF-8 reader.
        return [line for line in path.read_text(encoding="latin-1").splitlines() if line]
    except OSError as error:
        raise WorldError(f"{path}: expected a readable file, got: {error.strerror}") from error


def _is_earlier(ratings: Ratings, history: float) -> npt.NDArray[np.bool_]:
    """Mark the share ``history`` of each user's ratings that is the earliest (ties in time: by item)."""
    order = np.lexsort((ratings.items, ratings.seconds, ratings.users))
    totals = np.bincount(ratings.users)
    first = np.concatenate(([0], np.cumsum(totals)))[:-1]
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size) - first[ratings.users[order]]
    return np.asarray(place < np.floor(history * totals)[ratings.users])


def _histograms(
    ratings: Ratings, counted: npt.NDArray[np.bool_], genres: list[int], digits: int
) -> npt.NDArray[np.float32]:
    """Return the (users, d) histograms of the counted ratings, each genre relative to its share overall."""
    flags = ratings.genres[:, genres].astype(np.float64)
    shares = flags / np.maximum(flags.sum(axis=1, keepdims=True), 1.0)
    mass = np.zeros((int(ratings.users.max()) + 1, len(genres)))
    np.add.at(mass, ratings.users[counted], shares[ratings.items[counted]])
    overall = mass.sum(axis=0)
    lift = np.divide(mass, overall, out=np.zeros_like(mass), where=overall > 0)
    return on_grid(lift, digits)


def _film_groups(
    ratings: Ratings, likes: npt.NDArray[np.bool_], earlier: npt.NDArray[np.bool_], groups: int, seed: int
) -> npt.NDArray[np.bool_]:
    """Return the (items, groups) membership of films in groups; only earlier ratings are looked at."""
    from sklearn.cluster import KMeans

    films = ratings.genres.shape[0]
    rated = np.bincount(ratings.items[earlier], minlength=films)
    liked = np.bincount(ratings.items[earlier & likes], minlength=films)
    prior = liked.sum() / max(1, rated.sum())
    liking = (liked + _PRIOR_RATINGS * prior) / (rated + _PRIOR_RATINGS)
    features = np.column_stack(
        (
            _GENRE_WEIGHT * ratings.genres,
            _LIKING_WEIGHT * liking,
            _POPULARITY_WEIGHT * np.log1p(rated),
        )
    )
    assigned = KMeans(n_clusters=groups, n_init=4, random_state=seed).fit_predict(features)
    member = np.zeros((films, groups), dtype=np.bool_)
    member[np.arange(films), assigned] = True
    return member


def _answers(
    ratings: Ratings,
    likes: npt.NDArray[np.bool_],
    later: npt.NDArray[np.bool_],
    order: npt.NDArray[np.int64],
    member: npt.NDArray[np.bool_],
    kinds: list[str],
    seed: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return start and count (users, K) and the flat answers, each user's and kind's in a keyed order."""
    place_of = np.full(int(ratings.users.max()) + 1, -1)
    place_of[order] = np.arange(order.size)
    cells, values, keys = [], [], []
    for arm, kind in enumerate(kinds):
        chosen = later & member[ratings.items, arm] & (place_of[ratings.users] >= 0)
        owner = place_of[ratings.users[chosen]]
        cells.append(owner * len(kinds) + arm)
        values.append(likes[chosen])
        # Keyed by user, item and arm: adding or removing other users or arms changes no other answers.
        item, raw_user = ratings.items[chosen], ratings.users[chosen]
        keys.append(Draws(seed, f"answers|{kind}").uniforms(raw_user, 0, 1, item)[:, 0])
    cell = np.concatenate(cells)
    sorted_rows = np.lexsort((np.concatenate(keys), cell))
    count = np.bincount(cell, minlength=order.size * len(kinds))
    start = np.concatenate(([0], np.cumsum(count)))[:-1]
    shape = (order.size, len(kinds))
    return start.reshape(shape), count.reshape(shape), np.concatenate(values)[sorted_rows].astype(np.float64)
