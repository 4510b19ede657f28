"""Data: sources, what clients hold of them, public sets, augmentation."""

from polyfed.data.allocation import Partition, from_owners
from polyfed.data.augment import flip, pad_crop, standard
from polyfed.data.dataset import DataSet, Rows, join_tensors, set_tensor_cache
from polyfed.data.domains import rotate
from polyfed.data.named import whereabouts
from polyfed.data.partition import (
    Dirichlet,
    Iid,
    Natural,
    PartitionSettings,
    Pathological,
    Quantity,
    Rotated,
    Shards,
    iid,
    make_partition,
    natural,
    pathological,
    prepare,
    quantity_skew,
    shards,
)
from polyfed.data.public import PublicSettings, adapt, make_public
from polyfed.data.sources import has_split, known_sets, load
from polyfed.data.splits import draw_stratified, split_client, split_sizes
from polyfed.data.storage import Draft, cache_root, in_memory

__all__ = [
    "DataSet",
    "Dirichlet",
    "Draft",
    "Iid",
    "Natural",
    "Partition",
    "PartitionSettings",
    "Pathological",
    "PublicSettings",
    "Quantity",
    "Rotated",
    "Rows",
    "Shards",
    "adapt",
    "cache_root",
    "draw_stratified",
    "flip",
    "from_owners",
    "has_split",
    "iid",
    "in_memory",
    "join_tensors",
    "known_sets",
    "load",
    "make_partition",
    "make_public",
    "natural",
    "pad_crop",
    "pathological",
    "prepare",
    "quantity_skew",
    "rotate",
    "set_tensor_cache",
    "shards",
    "split_client",
    "split_sizes",
    "standard",
    "whereabouts",
]
