"""Models by name, their features, their sizes, and which client gets which.

    model = build("resnet20", shape=(3, 32, 32), outputs=10, generator=seeds.torch("model", "client-3"))
    features, logits = features_and_logits(model, images)

`names("res*")` lists what there is; `register` adds your own, and so do entry points of other packages. Any `nn.Module`
of yours in float32, float64 or bfloat16 works as it is; set `channels_last = True` on it if it is faster in that memory
format.
"""

from __future__ import annotations

from polyfed.models import (  # noqa: F401  (each of these registers its models)
    alexnet,
    cnn,
    efficientnet,
    lenet,
    mlp,
    mobilenet,
    resnet,
    resnet_cifar,
    shufflenet,
    vgg,
    wrn,
)
from polyfed.models.adapter import Output, adapt
from polyfed.models.assignment import Budget, assign_models
from polyfed.models.features import feature_count, features_and_logits
from polyfed.models.frozen import (
    FrozenMarks,
    check_frozen,
    frozen_marks,
    frozen_names,
    is_frozen_norm,
    note_frozen,
    note_loose,
    reset_loose,
    share_frozen,
)
from polyfed.models.generator import FeatureGenerator, build_generator
from polyfed.models.layers import Norm, Shape
from polyfed.models.likeness import structure
from polyfed.models.naming import check_name, file_name
from polyfed.models.network import Network, laid_out, memory_format
from polyfed.models.outside import is_outside
from polyfed.models.precision import HALF, check_types, fit_types, has_half
from polyfed.models.probe import (
    display_name,
    expect_tokens,
    explained,
    give_name,
    in_mode,
    largest_id,
    materialise,
    output_count,
    output_shape,
    random_inputs,
)
from polyfed.models.registry import build, is_known, maker_of, names, own_maker, register, seeded
from polyfed.models.sizes import ListedModel, Size, listed, size, table
from polyfed.models.trust import (
    Trust,
    check_trusted,
    modules_to_trust,
    named_on_the_command_line,
    trust_flags,
)

__all__ = [
    "HALF",
    "Budget",
    "FeatureGenerator",
    "FrozenMarks",
    "ListedModel",
    "Network",
    "Norm",
    "Output",
    "Shape",
    "Size",
    "Trust",
    "adapt",
    "assign_models",
    "build",
    "build_generator",
    "check_frozen",
    "check_name",
    "check_trusted",
    "check_types",
    "display_name",
    "expect_tokens",
    "explained",
    "feature_count",
    "features_and_logits",
    "file_name",
    "fit_types",
    "frozen_marks",
    "frozen_names",
    "give_name",
    "has_half",
    "in_mode",
    "is_frozen_norm",
    "is_known",
    "is_outside",
    "laid_out",
    "largest_id",
    "listed",
    "maker_of",
    "materialise",
    "memory_format",
    "modules_to_trust",
    "named_on_the_command_line",
    "names",
    "note_frozen",
    "note_loose",
    "output_count",
    "output_shape",
    "own_maker",
    "random_inputs",
    "register",
    "reset_loose",
    "seeded",
    "share_frozen",
    "size",
    "structure",
    "table",
    "trust_flags",
]
