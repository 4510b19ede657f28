"""Plain PyTorch learning: takes models and tensors, knows nothing of federations."""

from polyfed.learn.distil import distil
from polyfed.learn.evaluate import Ensemble, evaluating, predict, score
from polyfed.learn.flat import flat_gradient, flat_step
from polyfed.learn.losses import (
    Distillation,
    are_probabilities,
    cross_entropy,
    entropy,
    kl,
    knowledge_loss,
    soften,
)
from polyfed.learn.projection import project, project_both
from polyfed.learn.stacked import can_stack, supervised_together
from polyfed.learn.statistics import recompute_statistics
from polyfed.learn.supervised import ExtraLoss, supervised
from polyfed.learn.training import Training, freeze_norms, take
from polyfed.learn.weights import (
    WeightedMean,
    is_statistic,
    load_weights,
    make_ready,
    named_tensors,
    norm_entries,
    weights_of,
)

__all__ = [
    "Distillation",
    "Ensemble",
    "ExtraLoss",
    "Training",
    "WeightedMean",
    "are_probabilities",
    "can_stack",
    "cross_entropy",
    "distil",
    "entropy",
    "evaluating",
    "flat_gradient",
    "flat_step",
    "freeze_norms",
    "is_statistic",
    "kl",
    "knowledge_loss",
    "load_weights",
    "make_ready",
    "named_tensors",
    "norm_entries",
    "predict",
    "project",
    "project_both",
    "recompute_statistics",
    "score",
    "soften",
    "supervised",
    "supervised_together",
    "take",
    "weights_of",
]
