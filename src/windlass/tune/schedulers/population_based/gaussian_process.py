"""Gaussian process regression with a time-varying kernel, in NumPy.

Source: Bogunovic et al. 2016, "Time-varying Gaussian process bandit optimization" (AISTATS), section 2; fitting as in
Rasmussen and Williams 2006, "Gaussian processes for machine learning", section 5.4.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from windlass.core.errors import WindlassError

if TYPE_CHECKING:
    from numpy import ndarray

    Array = ndarray[Any, Any]

__all__ = ["TimeVaryingProcess", "numpy_and_minimize"]

_START = (1.0, 1.0, 0.1)  # variance, lengthscale, epsilon
_BOUNDS = ((1e-5, 1e5), (1e-5, 1e5), (1e-5, 0.5))
_NOISE_START, _NOISE_BOUNDS = 0.1, (1e-6, 1.0)


class TimeVaryingProcess:
    """Gaussian process with a time-varying kernel.

    k(x, y) = variance * exp(-|x - y|^2 / lengthscale) * (1 - epsilon) ** (|t_x - t_y| / 2), with noise on the
    diagonal.

    Args:
        points_ND: the first column is time.
        values_N: with mean 0.
        noise: the variance of the values' noise; None fits it as well.
    """

    def __init__(self, points_ND: Array, values_N: Array, noise: float | None = None) -> None:
        self._np, self._minimize = numpy_and_minimize()
        self.points, self.values = points_ND, values_N
        self._fixed_noise = noise
        self._ages, self._gaps = self._distances(points_ND, points_ND)
        self.theta = self._fit()
        self._root, self._weights, self.log_likelihood = self._solve(self.theta)

    def kernel(self, first_ND: Array, second_MD: Array) -> Array:
        """Return the covariances, shape (N, M), without noise."""
        return self._kernel(*self._distances(first_ND, second_MD), self.theta)

    def predict(self, points_MD: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation at the points, without noise, each of shape (M,)."""
        np = self._np
        cross_MN = self.kernel(points_MD, self.points)
        solved_NM = self._root @ cross_MN.T
        variance_M = np.exp(self.theta[0]) - np.sum(solved_NM**2, axis=0)
        return cross_MN @ self._weights, np.sqrt(np.maximum(variance_M, 0.0))

    def also(self, points_MD: Array) -> TimeVaryingProcess:
        """Return a process fitted with more points, whose values are assumed to be 0."""
        np = self._np
        points = np.vstack((self.points, points_MD))
        values = np.concatenate((self.values, np.zeros(len(points_MD))))
        return TimeVaryingProcess(points, values, self._fixed_noise)

    def _fit(self) -> Array:
        np = self._np
        start, bounds = list(_START), list(_BOUNDS)
        if self._fixed_noise is None:
            start, bounds = [*start, _NOISE_START], [*bounds, _NOISE_BOUNDS]
        found = self._minimize(
            self._loss, np.log(start), jac=True, method="L-BFGS-B", bounds=np.log(bounds), options={"maxiter": 100}
        )
        theta: Array = found.x
        return theta

    def _loss(self, theta: Array) -> tuple[float, Array]:
        """Return the negative log marginal likelihood and its gradient."""
        np = self._np
        root, weights, likelihood = self._solve(theta)
        covariance = self._kernel(self._ages, self._gaps, theta)
        inner = np.outer(weights, weights) - root.T @ root
        epsilon = np.exp(theta[2])
        slopes = [
            covariance,
            covariance * self._gaps / np.exp(theta[1]),
            -covariance * self._ages / 2 * epsilon / (1 - epsilon),
        ]
        if self._fixed_noise is None:
            slopes.append(np.eye(len(root)) * np.exp(theta[3]))
        return -likelihood, -0.5 * np.array([np.sum(inner * slope) for slope in slopes])

    def _solve(self, theta: Array) -> tuple[Array, Array, float]:
        """Return inverse Cholesky factor, weights and log marginal likelihood.

        Identical points get a little noise.
        """
        np = self._np
        noise = self._fixed_noise if self._fixed_noise is not None else np.exp(theta[3])
        covariance = self._kernel(self._ages, self._gaps, theta)
        eye = np.eye(len(covariance))
        for jitter in (0.0, 1e-8, 1e-6, 1e-4, 1e-2, 1.0):
            try:
                factor = np.linalg.cholesky(covariance + (noise + jitter * np.exp(theta[0])) * eye)
                break
            except np.linalg.LinAlgError:
                continue
        root = np.linalg.inv(factor)
        weights = root.T @ (root @ self.values)
        half_log_det = np.sum(np.log(np.diag(factor)))
        likelihood = -0.5 * self.values @ weights - half_log_det - 0.5 * len(factor) * np.log(2 * np.pi)
        return root, weights, float(likelihood)

    def _distances(self, first_ND: Array, second_MD: Array) -> tuple[Array, Array]:
        """Return absolute distances in time, and squared distances in the other columns."""
        np = self._np
        ages = np.abs(first_ND[:, None, 0] - second_MD[None, :, 0])
        gaps = np.sum((first_ND[:, None, 1:] - second_MD[None, :, 1:]) ** 2, axis=2)
        return ages, gaps

    def _kernel(self, ages: Array, gaps: Array, theta: Array) -> Array:
        np = self._np
        variance, lengthscale, epsilon = np.exp(theta[:3])
        covariance: Array = variance * np.exp(-gaps / lengthscale) * (1 - epsilon) ** (0.5 * ages)
        return covariance


def numpy_and_minimize() -> tuple[Any, Any]:
    """Import and return numpy and scipy's `minimize`.

    Raises:
        WindlassError: they are not installed (`extra-missing`).
    """
    try:  # lazy: only PB2 needs them
        return importlib.import_module("numpy"), importlib.import_module("scipy.optimize").minimize
    except ImportError as error:
        raise WindlassError(
            f"PB2 needs {error.name}", hint="pip install 'windlass[tune]'", code="extra-missing"
        ) from error
