"""Student's t distribution for any level, without scipy."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

_LARGE = 2000
"""Degrees of freedom from which the expansion around the normal quantile is used."""


def two_sided_p(t: float, freedom: int) -> float:
    """Return P(|T| > |t|), from the finite series for integer degrees of freedom (Abramowitz & Stegun 1964, 26.7.3-4).

    Above 2,000 degrees of freedom, it is an approximation with a relative error below 1e-5.
    """
    if freedom > _LARGE:
        return 2 * NormalDist().cdf(-_normal_from_t(abs(t), freedom))
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2:
        factors = np.arange(2, freedom - 2, 2) / np.arange(3, freedom - 1, 2)
        terms = math.sin(angle) * cosine * _series(factors, cosine**2, (freedom - 1) // 2)
        inside = 2 / math.pi * (angle + terms)
    else:
        factors = np.arange(1, freedom - 2, 2) / np.arange(2, freedom - 1, 2)
        inside = math.sin(angle) * _series(factors, cosine**2, freedom // 2)
    return min(1.0, max(0.0, 1.0 - inside))


@cache
def quantile(alpha: float, freedom: int) -> float:
    """Return t with P(|T| > t) = alpha."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def _series(factors: np.ndarray[tuple[int], np.dtype[np.float64]], square: float, terms: int) -> float:
    """Return 1 + f1 s + f1 f2 s^2 + ..., with `terms` terms."""
    if not terms:
        return 0.0
    return 1.0 + float(np.cumprod(factors[: terms - 1] * square).sum())


def _normal_from_t(t: float, freedom: int) -> float:
    """Return the normal deviate with the same tail (Wallace 1959, Annals of Mathematical Statistics 30(4))."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return scale * math.sqrt(freedom * math.log1p(t * t / freedom))
