"""What is known of the named data sets without reading them: rows, shapes, classes, where they were published."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyfed.data.named import NAMED, local_folder, whereabouts
from polyfed.data.sources import known_sets
from polyfed.errors import DataError, nearest, system_reason


@dataclass(frozen=True)
class Published:
    """A set as it was published; local files may be a part of it.

    shape: channels, height, width; None where images have all sizes.
    rows: of each split.
    """

    what: str
    shape: tuple[int, int, int] | None
    classes: int
    rows: dict[str, int]
    cite: str


@dataclass(frozen=True)
class SetFacts:
    """What is known of a named set.

    image, label, columns: names of its columns.
    size: what images are resized to unless `data.size` says something else.
    here: the rows of its files below $POLYFED_DATA, by split; empty if there are none.
    """

    name: str
    published: Published
    whereabouts: str
    image: str = ""
    label: str = ""
    columns: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    here: dict[str, int] = field(default_factory=dict)


def about(name: str) -> SetFacts:
    """What is known of a named set; a `DataError` that names the nearest for other names."""
    if name not in known_sets():
        raise DataError(f"there is no data set '{name}': {nearest(name, known_sets(), 'polyfed data')}")
    if name not in NAMED:
        return SetFacts(name, PUBLISHED[name], whereabouts(name))
    entry = NAMED[name]
    return SetFacts(
        name,
        PUBLISHED[name],
        whereabouts(name),
        entry.image,
        entry.label,
        entry.columns,
        entry.size,
        _rows_here(name),
    )


def _rows_here(name: str) -> dict[str, int]:
    import pyarrow as pa  # noqa: PLC0415  (slow to import, and only needed here)
    import pyarrow.parquet as pq  # noqa: PLC0415

    folder = local_folder(name)
    if folder is None:
        return {}
    rows = {}
    for split in ("train", "test"):
        file = folder / f"{split}.parquet"
        if file.is_file():
            try:
                rows[split] = int(pq.read_metadata(file).num_rows)
            except (OSError, pa.ArrowInvalid) as error:
                reason = system_reason(error)
                raise DataError(
                    f"{file} cannot be read{'' if reason else ' as parquet'}: {reason or str(error).splitlines()[0]}"
                ) from None
    return rows


_LECUN = 'LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998'
_KRIZHEVSKY = 'Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009'

PUBLISHED: dict[str, Published] = {
    "digits": Published(
        "handwritten digits, scikit-learn's copy of a part of UCI's",
        (1, 8, 8),
        10,
        {"train": 1437, "test": 360},
        'Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998',
    ),
    "mnist": Published("handwritten digits", (1, 28, 28), 10, {"train": 60_000, "test": 10_000}, _LECUN),
    "fashion_mnist": Published(
        "pictures of clothes",
        (1, 28, 28),
        10,
        {"train": 60_000, "test": 10_000},
        'Xiao et al., "Fashion-MNIST", 2017',
    ),
    "emnist": Published(
        "handwritten letters",
        (1, 28, 28),
        26,
        {"train": 124_800, "test": 20_800},
        'Cohen et al., "EMNIST: an Extension of MNIST to Handwritten Letters", 2017',
    ),
    "femnist": Published(
        "handwritten digits and letters, by writer",
        (1, 28, 28),
        62,
        {"train": 814_277},
        'Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018',
    ),
    "cifar10": Published(
        "small photographs", (3, 32, 32), 10, {"train": 50_000, "test": 10_000}, _KRIZHEVSKY
    ),
    "cifar100": Published(
        "small photographs of 100 classes, or 20 coarse ones with `label: coarse_label`",
        (3, 32, 32),
        100,
        {"train": 50_000, "test": 10_000},
        _KRIZHEVSKY,
    ),
    "tiny_imagenet": Published(
        "small photographs, a part of ImageNet",
        (3, 64, 64),
        200,
        {"train": 100_000, "test": 10_000},
        'Le & Yang, "Tiny ImageNet Visual Recognition Challenge", 2015',
    ),
    "pacs": Published(
        "photographs, paintings, cartoons and sketches",
        (3, 227, 227),
        7,
        {"train": 9_991},
        'Li et al., "Deeper, Broader and Artier Domain Generalization", 2017',
    ),
    "office_home": Published(
        "things at home and in offices: art, clip art, product pictures, photographs",
        None,
        65,
        {"train": 15_588},
        'Venkateswara et al., "Deep Hashing Network for Unsupervised Domain Adaptation", 2017',
    ),
}
