"""Data: sources, what clients hold of them, public sets, augmentation."""

from polyfed.data import augment, noise
from polyfed.data.agreement import Agreement, agree, agreement_of, template, with_ids_of
from polyfed.data.dataset import DataSet, Limits, Rows
from polyfed.data.facts import SetFacts, about
from polyfed.data.holding import Holding, put_together
from polyfed.data.named import whereabouts
from polyfed.data.new_rows import InputForm, read_new_rows
from polyfed.data.normalisation import Constants, moments, no_normalisation, pooled
from polyfed.data.oddities import alike_notes, copy_notes, row_hashes
from polyfed.data.partition import (
    PARTITIONS,
    Dirichlet,
    Function,
    Listed,
    Natural,
    PartitionSettings,
    Rotated,
    make_partition,
    prepare,
)
from polyfed.data.public import PublicSettings, adapt, make_public
from polyfed.data.sources import has_split, known_sets, load, table_columns
from polyfed.data.splits import apportion, draw_stratified, split_client, split_sizes
from polyfed.data.storage import check_cache, verify
from polyfed.data.targets import (
    CLASS_LABELS,
    LARGEST_NUMBER,
    NUMBER_LABELS,
    SEVERAL_LABELS,
    LabelSource,
    Targets,
)

__all__ = [
    "CLASS_LABELS",
    "LARGEST_NUMBER",
    "NUMBER_LABELS",
    "PARTITIONS",
    "SEVERAL_LABELS",
    "Agreement",
    "Constants",
    "DataSet",
    "Dirichlet",
    "Function",
    "Holding",
    "InputForm",
    "LabelSource",
    "Limits",
    "Listed",
    "Natural",
    "PartitionSettings",
    "PublicSettings",
    "Rotated",
    "Rows",
    "SetFacts",
    "Targets",
    "about",
    "adapt",
    "agree",
    "agreement_of",
    "alike_notes",
    "apportion",
    "augment",
    "check_cache",
    "copy_notes",
    "draw_stratified",
    "has_split",
    "known_sets",
    "load",
    "make_partition",
    "make_public",
    "moments",
    "no_normalisation",
    "noise",
    "pooled",
    "prepare",
    "put_together",
    "read_new_rows",
    "row_hashes",
    "split_client",
    "split_sizes",
    "table_columns",
    "template",
    "verify",
    "whereabouts",
    "with_ids_of",
]
