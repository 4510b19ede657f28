"""One file per algorithm, each reading like its paper. Importing this package registers them all."""

from polyfed.methods.aggregated import Aggregated
from polyfed.methods.cronus import Cronus
from polyfed.methods.dsfl import DSFL
from polyfed.methods.fdmeta import FDMeta
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.feddf import FedDF
from polyfed.methods.fedgen import FedGen
from polyfed.methods.fedgkd import FedGKD
from polyfed.methods.fedh2l import FedH2L
from polyfed.methods.fedkem import FedKEM
from polyfed.methods.fedkf import FedKF
from polyfed.methods.fedmd import FedMD
from polyfed.methods.fednova import FedNova
from polyfed.methods.fedntd import FedNTD
from polyfed.methods.fedproto import FedProto
from polyfed.methods.fedprox import FedProx
from polyfed.methods.fml import FML
from polyfed.methods.ktpfl import KTpFL
from polyfed.methods.local import Local
from polyfed.methods.moon import MOON
from polyfed.methods.pooled import Pooled
from polyfed.methods.qffl import QFFL
from polyfed.methods.scaffold import Scaffold
from polyfed.methods.spatl import SPATL

__all__ = [
    "DSFL",
    "FML",
    "MOON",
    "QFFL",
    "SPATL",
    "Aggregated",
    "Cronus",
    "FDMeta",
    "FedAvg",
    "FedDF",
    "FedGKD",
    "FedGen",
    "FedH2L",
    "FedKEM",
    "FedKF",
    "FedMD",
    "FedNTD",
    "FedNova",
    "FedProto",
    "FedProx",
    "KTpFL",
    "Local",
    "Pooled",
    "Scaffold",
]
