"""What a federation is: methods, clients and a server, what may travel between them, how it is counted."""

from polyfed.federation.declaration import ANY_TASK, CLASSES, LABELS, TABLES, Declaration, Need, when
from polyfed.federation.fields import (
    Counts,
    Declared,
    Indices,
    LikeWeights,
    Number,
    OwnWeights,
    Probabilities,
    RowNumbers,
    Table,
)
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.method import (
    Fleet,
    Method,
    MethodSettings,
    Reply,
    client_step,
    reads_only,
    register,
    server_step,
    stacks,
)
from polyfed.federation.nodes import Assistant, Client, Server
from polyfed.federation.roster import Facts, FederationFacts
from polyfed.federation.topology import TopologyName

__all__ = [
    "ANY_TASK",
    "CLASSES",
    "LABELS",
    "TABLES",
    "Assistant",
    "Client",
    "Counts",
    "Declaration",
    "Declared",
    "Facts",
    "FederationFacts",
    "Fields",
    "Fleet",
    "Indices",
    "Kind",
    "LikeWeights",
    "Method",
    "MethodSettings",
    "Need",
    "Number",
    "OwnWeights",
    "Probabilities",
    "Reply",
    "RowNumbers",
    "Server",
    "Table",
    "TopologyName",
    "Weights",
    "client_step",
    "reads_only",
    "register",
    "server_step",
    "stacks",
    "when",
]
