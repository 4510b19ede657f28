"""A mean of answers that a minority of arbitrary answers cannot pull far from what the others say.

The filter of Diakonikolas et al., "Being Robust (in High Dimensions) Can Be Practical", 2017 (sub-Gaussian case):

    repeat:  v ← direction along which the points vary most;   λ ← their variance along it
             if λ ≤ s²: stop
             m ← median of the points along v
             T ← the smallest at which more points lie beyond m ± (T + δ) than the tail 2 exp(−T² / 2s²) allows
             if there is none: stop;   otherwise leave out all points beyond m ± (T + δ)
    result:  the mean of the points that are left

The paper takes s for known and draws points from a distribution. Here points are few, and honest ones are only taken to
lie in some ball of radius R around their mean, for which s = R is Hoeffding's bound. The median is at most R off, hence
δ = R. Where R is not given, it is the radius of the smallest ball around one of the points that holds all but the
poisoned share ε of them: at most twice the honest ones' own.

What follows, for any n points of which at most ε n < n / 2 are bad (tests/learn/test_robust.py):

  - At most ε n points are left out. Along v, all points of the ball are within 2R of m, and there the tail is above 1.
  - At the end λ ≤ 7.94 s²: the mean square of what obeys the tail. So with R measured, the result is at most
    2 · 2.82 R √(ε / (1 − 2ε)) + R ε / (1 − 2ε) from the honest mean: 2.2 R for ε = 0.1, 3.6 R for 0.2.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TAIL = 2.0
SAME = 1e-6  # answers are 32-bit numbers: what is nearer than this is the same
TIE = 1e-9  # of the farthest distance along v: points whose distances differ by less go together, or none of them
ROWS_AT_ONCE = 512  # bounds the memory


def robust_mean(answers: Tensor, poisoned: float, spread: float | None = None) -> Tensor:
    """The mean over clients of every row, without the answers that honest clients would not have given.

    answers: clients × rows × outputs, in any order of the clients: the result is the same, bit for bit.
    poisoned: ε, the share of the answers that may be anything, below a half; of n answers at most the whole part of ε n
        are left out of a row's mean, so none of fewer than 1 / ε.
    spread: R, how far honest answers lie from their mean at most; None measures it on every row.
    """
    bad = int(poisoned * len(answers) + 1e-9)
    parts = answers.double().transpose(0, 1).split(ROWS_AT_ONCE)
    return torch.cat([_filtered_mean(_in_order(part), bad, spread) for part in parts]).to(answers.dtype)


def _in_order(points: Tensor) -> Tensor:
    """Each row's points in the order of their coordinates: sums then do not depend on who answered first."""
    order = torch.from_numpy(np.lexsort(points.permute(2, 0, 1).numpy()))  # rows × clients
    return points.take_along_dim(order.unsqueeze(2), dim=1)


def _filtered_mean(points: Tensor, bad: int, spread: float | None) -> Tensor:
    kept = torch.ones(points.shape[:2], dtype=torch.bool)
    scale = _scale(points, bad, spread)
    rows = torch.arange(len(points))
    for _ in range(bad):  # every pass leaves out one point at least
        outside = _outside(points[rows], kept[rows], scale[rows], bad)
        kept[rows] &= ~outside
        rows = rows[outside.any(dim=1)]
        if not len(rows):
            break
    return _mean(points, kept).squeeze(1)


def _scale(points: Tensor, bad: int, spread: float | None) -> Tensor:
    """R of every row (rows × 1): as given, or of the smallest ball around a point that holds all but `bad` of them."""
    if spread is not None:
        return torch.full((len(points), 1), max(spread, SAME), dtype=points.dtype)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    radii = distances.kthvalue(points.shape[1] - bad, dim=2).values
    return radii.amin(dim=1, keepdim=True).clamp(min=SAME)


def _outside(points: Tensor, kept: Tensor, scale: Tensor, bad: int) -> Tensor:
    """Which points one pass of the filter leaves out (rows × clients)."""
    left = kept.sum(dim=1, keepdim=True)
    centred = (points - _mean(points, kept)) * kept.unsqueeze(2)
    along = _along_widest(centred).gather(1, _first_alike(points))
    variance = along.square().sum(dim=1, keepdim=True) / left
    away = (along - _median(along, kept)).abs().masked_fill(~kept, -1.0)
    tie = TIE * away.amax(dim=1, keepdim=True).clamp(min=0)
    beyond = (away.unsqueeze(1) >= (away - tie).unsqueeze(2)).sum(
        dim=2
    )  # how many lie as far out, or farther
    tail = TAIL * torch.exp(-0.5 * ((away - scale).clamp(min=0) / scale).square())
    may_go = bad - (kept.shape[1] - left)
    unexplained = kept & (beyond > tail * left) & (beyond <= may_go) & (variance > scale.square())
    threshold = away.masked_fill(~unexplained, torch.inf).amin(dim=1, keepdim=True)
    return kept & (away >= threshold - tie)


def _first_alike(points: Tensor) -> Tensor:
    """For each of points in order the place of the first that is equal to it (rows × clients).

    Equal ones get one place along v: what is computed for each by itself differs in its last bits.
    """
    places = torch.arange(points.shape[1]).expand(points.shape[:2])
    again = torch.zeros(points.shape[:2], dtype=torch.bool)
    again[:, 1:] = (points[:, 1:] == points[:, :-1]).all(dim=2)
    return places.masked_fill(again, 0).cummax(dim=1).values


def _along_widest(centred: Tensor) -> Tensor:
    """Every point's place along v, the top eigenvector of the covariance (rows × clients)."""
    clients, outputs = centred.shape[1:]
    if outputs <= clients:
        directions: Tensor = torch.linalg.eigh(centred.mT @ centred).eigenvectors
        return (centred @ directions[:, :, -1:]).squeeze(2)
    inner: Tensor = centred @ centred.mT  # smaller than the covariance, and tells the same
    values, places = torch.linalg.eigh(inner)
    along: Tensor = places[:, :, -1] * values[:, -1:].clamp(min=0).sqrt()
    return along


def _mean(points: Tensor, kept: Tensor) -> Tensor:
    """The mean of the points that are kept (rows × 1 × outputs)."""
    weights = kept.to(points.dtype) / kept.sum(dim=1, keepdim=True)
    return (weights.unsqueeze(2) * points).sum(dim=1, keepdim=True)


def _median(along: Tensor, kept: Tensor) -> Tensor:
    """The median of the numbers that are kept (rows × 1); the middle of the two middle ones, so that −v gives −m."""
    count = kept.sum(dim=1, keepdim=True)
    ordered = along.masked_fill(~kept, torch.inf).sort(dim=1).values
    return (ordered.gather(1, (count - 1) // 2) + ordered.gather(1, count // 2)) / 2
