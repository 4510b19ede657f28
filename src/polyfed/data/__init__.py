"""Data: sources, what clients hold of them, public sets, augmentation."""

from polyfed.data import augment, noise
from polyfed.data.dataset import DataSet, Limits, Rows
from polyfed.data.facts import SetFacts, about
from polyfed.data.named import whereabouts
from polyfed.data.new_rows import InputForm, read_new_rows
from polyfed.data.partition import (
    PARTITIONS,
    Dirichlet,
    Natural,
    PartitionSettings,
    Rotated,
    make_partition,
    prepare,
)
from polyfed.data.public import PublicSettings, make_public
from polyfed.data.sources import has_split, known_sets, load
from polyfed.data.splits import split_client, split_sizes
from polyfed.data.storage import check_cache, verify

__all__ = [
    "PARTITIONS",
    "DataSet",
    "Dirichlet",
    "InputForm",
    "Limits",
    "Natural",
    "PartitionSettings",
    "PublicSettings",
    "Rotated",
    "Rows",
    "SetFacts",
    "about",
    "augment",
    "check_cache",
    "has_split",
    "known_sets",
    "load",
    "make_partition",
    "make_public",
    "noise",
    "prepare",
    "read_new_rows",
    "split_client",
    "split_sizes",
    "verify",
    "whereabouts",
]
