"""One file per algorithm, each reading like its paper. Importing this package registers them all."""

from polyfed.methods.aggregated import Aggregated
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedmd import FedMD
from polyfed.methods.fedprox import FedProx
from polyfed.methods.local import Local
from polyfed.methods.pooled import Pooled

__all__ = ["Aggregated", "FedAvg", "FedMD", "FedProx", "Local", "Pooled"]
