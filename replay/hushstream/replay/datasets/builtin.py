"""The datasets that come with hushstream: addresses and checksums where they are known, never the data themselves.

*Datasets by name.* Finds a dataset by name, among the built-in ones and the entry points of other packages.

Another package adds a dataset with an entry point of the group ``hushstream.datasets`` that names a `Dataset`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hushstream.replay.study import Registry, studies
from hushstream.schemas.errors import HushstreamError


class DatasetError(HushstreamError):
    """A dataset is unknown, its files were not found, or they differ from what its publisher released."""


class AbsentDatasetError(DatasetError):
    """The files of a dataset were not found in the folder that was searched."""


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """One file of a dataset.

    Attributes:
        path: its place within the dataset's folder, with forward slashes.
        sha256: checksum of its bytes, in hexadecimal; None where it is not known, so that the file is not checked.
        size_bytes: its length; None where it is not known.
        url: address of the file alone at the publisher, or None.
        member: its name within the publisher's archive, or None.
    """

    path: str
    sha256: str | None = None
    size_bytes: int | None = None
    url: str | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset: its name, its licence, and how to get and check its files.

    Attributes:
        name: its name on the command line.
        description: one line that describes it.
        licence: what its publisher allows.
        page: address of its description; empty where there is none.
        files: every file that is needed, with its checksum where one is known.
        archive_url: the publisher's zip archive (a wheel is one), or None where files come one by one.
        note: what a user should know before a download.
        folders: names under which a local data folder may hold it.
        instead: other files of the publisher with the same content, used where ``files`` are absent.
    """

    name: str
    description: str
    licence: str
    page: str
    files: tuple[DatasetFile, ...]
    archive_url: str | None
    note: str
    folders: tuple[str, ...]
    instead: tuple[DatasetFile, ...] = ()


def simulated_dataset(name: str, description: str, page: str = "") -> Dataset:
    """Make a dataset without files, which a world simulates; the attributes are those of `Dataset`."""
    return Dataset(
        name=name,
        description=description,
        licence="none: simulated",
        page=page,
        files=(),
        archive_url=None,
        note="Nothing to fetch.",
        folders=(),
    )


_MULAN = (
    "https://raw.githubusercontent.com/tsoumakas/mulan/43f6389095ad71984264db4387a8074b22bc7d4a"
    "/data/multi-label/tmc2007/"
)
_LIBREC = "https://raw.githubusercontent.com/guoguibing/librec/296082c072ce7d973ebfccde793e59062d8a3add/data/filmtrust/"
_UNVERIFIED = "The addresses come from public descriptions and were not tried; checksums decide."


def _packed(prefix: str, *files: tuple[str, int, str]) -> tuple[DatasetFile, ...]:
    return tuple(DatasetFile(path, sha256, size, member=prefix + path) for path, size, sha256 in files)


def _single(prefix: str, *files: tuple[str, int, str]) -> tuple[DatasetFile, ...]:
    return tuple(DatasetFile(path, sha256, size, url=prefix + path) for path, size, sha256 in files)


SYNTHETIC = simulated_dataset(
    "synthetic",
    "Simulated preferences (Malekzadeh et al. 2020), text and code variants; the world of the demo",
    page="https://arxiv.org/abs/1909.04421",
)

SHOP = simulated_dataset(
    "shop",
    "Simulated visitors of a shop: a country, an age, interests and an hour; items with names",
)

CATALOGUE = simulated_dataset(
    "catalogue",
    "Simulated users with eight features, and 200 items with a kind, a price and tags",
)

ML_100K = Dataset(
    name="ml-100k",
    description="MovieLens-100K: 100,000 ratings of 1,682 movies by 943 users",
    licence="GroupLens research licence: non-commercial, cite Harper and Konstan 2015, no redistribution",
    page="https://grouplens.org/datasets/movielens/100k/",
    files=_packed(
        "ml-100k/",
        ("u.data", 1979173, "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"),
        ("u.genre", 202, "9757e0d3e6b298159a80dd48eaf938114690e911e39af97a76949ef1663610bb"),
        ("u.item", 236344, "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701"),
        ("u.user", 22628, "f120e114da2e8cf314fd28f99417c94ae9ddf1cb6db8ce0e4b5995d40e90e62c"),
    ),
    archive_url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
    note=f"{_UNVERIFIED} Several public copies are altered and will be refused.",
    folders=("ml-100k",),
)

TMC2007 = Dataset(
    name="tmc2007",
    description="TMC2007-500: 28,596 aviation safety reports, 500 words, 22 labels",
    licence="Mulan distribution: research use, cite Srivastava and Zane-Ulman 2005",
    page="https://mulan.sourceforge.net/datasets-mlc.html",
    files=_single(
        _MULAN,
        (
            "tmc2007-500-train.arff",
            3152791,
            "edfe7b7615c6f80e54c92a214437610d1ae36560c5cc6c4253b51c434d258273",
        ),
        (
            "tmc2007-500-test.arff",
            1054414,
            "b24f9c3f1eba77c9da0bbaff093ba41d331b7351be0167a8e1e3852c62e25e38",
        ),
    ),
    archive_url=None,
    note=(
        f"{_UNVERIFIED} Mulan's own page offers a RAR archive (tmc2007.rar at SourceForge), which Python "
        "cannot unpack without a further program; so the files come from the repository of its author, at a "
        "fixed commit. If you have the RAR, unpack it and give the folder by --data-dir."
    ),
    folders=("tmc2007-500", "tmc2007"),
)

_UNCHECKED = (
    "Its files are taken from a local folder (--data-dir) as the publisher offers them. They are not checked, "
    "as no checksum is known here; a line that is not in the format is refused."
)

MEDIAMILL = Dataset(
    name="mediamill",
    description="MediaMill: 43,907 video shots, 120 visual features, 101 labels",
    licence="Mulan distribution: research use, cite Snoek et al. 2006",
    page="https://mulan.sourceforge.net/datasets-mlc.html",
    files=(DatasetFile("mediamill-train.arff"), DatasetFile("mediamill-test.arff")),
    instead=(DatasetFile("mediamill.arff"),),
    archive_url=None,
    note=f"Mulan's page offers a RAR archive, which Python cannot unpack without a further program. {_UNCHECKED}",
    folders=("mediamill",),
)

CRITEO = Dataset(
    name="criteo",
    description="Criteo display advertising (Kaggle 2014): 45,840,617 impressions, 13 numbers, 26 categories, clicks",
    licence="Criteo's own terms, which its page asks to accept before the download; read them there",
    page="https://www.kaggle.com/c/criteo-display-ad-challenge/data",
    files=(DatasetFile("train.txt"),),
    archive_url=None,
    note=f"Kaggle's page leads to Criteo's, where the archive holds train.txt. {_UNCHECKED}",
    folders=("criteo", "dac"),
)

OBD = Dataset(
    name="obd",
    description="Open Bandit Dataset, small: 6 logs of 10,000 impressions, by a random and a Thompson policy",
    licence="in the Apache-2.0 wheel obp 0.4.1; the full release has its own terms; cite Saito et al. 2020",
    page="https://research.zozo.com/data.html",
    files=_packed(
        "obp/dataset/obd/",
        ("bts/all/all.csv", 5084456, "0ad874e4dbf6902f0845dd478ad8dde5ef6903583d3ffaace78411bdad064106"),
        ("bts/men/men.csv", 3240432, "db6d1f7ed2d591ba521533e45286d4c1fba7fe57a8ad2e80342210335f43c527"),
        ("bts/women/women.csv", 3722697, "e5d1b49a39b608585a2f3014a3f54970430cd37a495c1b73fceb85cdf428a5b8"),
        ("random/all/all.csv", 5039451, "7168295b6e0a9eabcf3392320a5dd434e542b68e705d5cd9491499af589812f1"),
        ("random/men/men.csv", 3336811, "ede6d08c6877f99cd3770f7d09e26c738e6aa6de4445ccccfb1356ba5d06b1eb"),
        (
            "random/women/women.csv",
            3817771,
            "e65f3bd3beb17664fa69cc129bf7bf852a775f8ffa630506e505fc905315bb34",
        ),
    ),
    archive_url="https://files.pythonhosted.org/packages/py3/o/obp/obp-0.4.1-py3-none-any.whl",
    note=(
        f"{_UNVERIFIED} It has too few clicks for any comparison of policies to be significant. The full "
        "release (26 million rows, a zip archive of about 400 MB) is at "
        "https://research.zozo.com/data_release/open_bandit_dataset.zip; unpacked, it is read by the same "
        "adapter (`hushstream.replay.logged.table.load_obd`)."
    ),
    folders=("open-bandit-small", "obd"),
)

FILMTRUST = Dataset(
    name="filmtrust",
    description="FilmTrust: 35,497 ratings of 2,071 films by 1,508 users, and who trusts whom",
    licence="cite Guo, Zhang and Yorke-Smith, IJCAI 2013; no explicit grant to redistribute",
    page="https://guoguibing.github.io/librec/datasets.html",
    files=_single(
        _LIBREC,
        ("ratings_0.txt", 129045, "cafa37f1b848a03fc7386c66474679c6e5d96eaf718e4818039201843ffa0b6b"),
        ("ratings_1.txt", 1535, "61a1d503f60933a190b61a87390617bbdbabd93acc0710b22cece560febca914"),
        ("ratings_2.txt", 200977, "970d371db2c51a079469bafe034f3fda145b509ff6f9021b596c3bfabffb80de"),
        ("ratings_3.txt", 73248, "86e31a869eef1f8667217447f867436efc3bf32c05ff396902427dd5be01d3bd"),
        ("trust.txt", 21464, "8e2013750bb0fe3f4fd9810185420423a744f8b20f7888b73e10cab3b3479fde"),
    ),
    archive_url=None,
    note=(
        f"{_UNVERIFIED} The parts are those of the author's own library; librec.net has them as one file. They are "
        "the ratings on which budgets of a recommender trained with clients are compared (experiments `bgt-*`)."
    ),
    folders=("filmtrust",),
)

LASTFM = Dataset(
    name="lastfm",
    description="HetRec 2011 Last.fm: 92,834 listening counts of 1,892 users, their friends and tags",
    licence="research use, cite Cantador et al., RecSys 2011; Last.fm terms: non-commercial",
    page="https://grouplens.org/datasets/hetrec-2011/",
    files=_packed(
        "",
        ("artists.dat", 1925879, "c173881362c6b28551368fecb3c0be5a6a30a6cd859e1f5775413dfe46d48648"),
        ("tags.dat", 234468, "e95175f259be4c0c47644ae23d66131cd6d5767142a1405000e79f5584691d70"),
        ("user_artists.dat", 1296455, "001400dc3c7d2667fca6e4ea6dc6acc31a9dd28ad5cd0f74cea988c019934d3b"),
        ("user_friends.dat", 251565, "9a3a8f7fa5f5ec832335e5b58ed69a4cf27c6f6f6afcde62134810eea46445a7"),
    ),
    archive_url="https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip",
    note=f"{_UNVERIFIED} The tag assignments are not listed: no checksum of the published file is known.",
    folders=("hetrec2011-lastfm-2k", "lastfm"),
)

BUILTIN = (SYNTHETIC, SHOP, CATALOGUE, ML_100K, TMC2007, MEDIAMILL, CRITEO, OBD, FILMTRUST, LASTFM)


DATASETS: Registry[Dataset] = Registry("dataset", "hushstream.datasets", Dataset, DatasetError)


def known_datasets() -> dict[str, Dataset]:
    """Return every dataset by name, sorted.

    Raises:
        DatasetError: two packages claim one name, or an entry point does not name a `Dataset`.
    """
    brought = (dataset for study in studies().values() for dataset in study.datasets)
    return DATASETS.known({dataset.name: dataset for dataset in (*BUILTIN, *brought)})


def find_dataset(name: str) -> Dataset:
    """Return the dataset of this name.

    Raises:
        DatasetError: no dataset has this name; the message lists the known names.
    """
    return DATASETS.find(known_datasets(), name)
