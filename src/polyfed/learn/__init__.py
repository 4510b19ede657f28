"""Plain PyTorch learning: takes models and tensors, knows nothing of federations."""

from polyfed.learn.augmentation import load_augmentation
from polyfed.learn.class_metrics import load_metrics
from polyfed.learn.distillation import distil
from polyfed.learn.evaluate import (
    EVALUATION_BATCH,
    Ensemble,
    evaluating,
    features_of,
    predict,
    score,
)
from polyfed.learn.filters import RowMean, filter_counts, largest_filters, layer_of, spread_rows, take_rows
from polyfed.learn.flat import flat_gradient, flat_step, steps_alike
from polyfed.learn.generation import (
    activation_loss,
    agree,
    balance_loss,
    diversity_loss,
    frozen,
    one_hot_loss,
)
from polyfed.learn.learner import (
    Learner,
    batch_count,
    batches,
    draw_batch,
    effective_steps,
    row_weights,
)
from polyfed.learn.losses import AnswerForm, Distillation, knowledge_loss
from polyfed.learn.measures import (
    METRICS,
    Metrics,
    Wish,
    added_value,
    admits_sums,
    is_metric_name,
    known_metric,
    metrics_for,
    metrics_of,
    own_functions,
    read_wishes,
    sums_of,
    wishes_of,
)
from polyfed.learn.metric import CONFUSION, Added, Family, InPlace, Metric, add, shown_in
from polyfed.learn.mutual_learning import Peer, mutual
from polyfed.learn.outside_metrics import MetricChoice
from polyfed.learn.projection import project, project_both
from polyfed.learn.proximal import Proximal
from polyfed.learn.robust import robust_mean
from polyfed.learn.sampling import check_balancing
from polyfed.learn.schedule import Schedule
from polyfed.learn.stacked import can_stack, can_stack_loss, supervised_together
from polyfed.learn.statistics import batch_statistics, recompute_statistics
from polyfed.learn.supervision import ExtraLoss, FeatureLoss, LocalLoss, supervised
from polyfed.learn.training import Training, freeze_norms, logits_of, over_rounds, take, trainings_in
from polyfed.learn.trial import prefers_channels_last, worth_stacking
from polyfed.learn.weights import (
    TableMax,
    TableMean,
    WeightedMean,
    all_finite,
    all_tensors,
    frozen_weights_of,
    is_statistic,
    load_frozen,
    load_weights,
    make_ready,
    named_tensors,
    norm_entries,
    root_mean_square,
    trained_tensors,
    weights_of,
)
from polyfed.tasks import cross_entropy, entropy, kl, soften

__all__ = [
    "CONFUSION",
    "EVALUATION_BATCH",
    "METRICS",
    "Added",
    "AnswerForm",
    "Distillation",
    "Ensemble",
    "ExtraLoss",
    "Family",
    "FeatureLoss",
    "InPlace",
    "Learner",
    "LocalLoss",
    "Metric",
    "MetricChoice",
    "Metrics",
    "Peer",
    "Proximal",
    "RowMean",
    "Schedule",
    "TableMax",
    "TableMean",
    "Training",
    "WeightedMean",
    "Wish",
    "activation_loss",
    "add",
    "added_value",
    "admits_sums",
    "agree",
    "all_finite",
    "all_tensors",
    "balance_loss",
    "batch_count",
    "batch_statistics",
    "batches",
    "can_stack",
    "can_stack_loss",
    "check_balancing",
    "cross_entropy",
    "distil",
    "diversity_loss",
    "draw_batch",
    "effective_steps",
    "entropy",
    "evaluating",
    "features_of",
    "filter_counts",
    "flat_gradient",
    "flat_step",
    "freeze_norms",
    "frozen",
    "frozen_weights_of",
    "is_metric_name",
    "is_statistic",
    "kl",
    "knowledge_loss",
    "known_metric",
    "largest_filters",
    "layer_of",
    "load_augmentation",
    "load_frozen",
    "load_metrics",
    "load_weights",
    "logits_of",
    "make_ready",
    "metrics_for",
    "metrics_of",
    "mutual",
    "named_tensors",
    "norm_entries",
    "one_hot_loss",
    "over_rounds",
    "own_functions",
    "predict",
    "prefers_channels_last",
    "project",
    "project_both",
    "read_wishes",
    "recompute_statistics",
    "robust_mean",
    "root_mean_square",
    "row_weights",
    "score",
    "shown_in",
    "soften",
    "spread_rows",
    "steps_alike",
    "sums_of",
    "supervised",
    "supervised_together",
    "take",
    "take_rows",
    "trained_tensors",
    "trainings_in",
    "weights_of",
    "wishes_of",
    "worth_stacking",
]
