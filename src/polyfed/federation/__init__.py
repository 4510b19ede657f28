"""What a federation is: methods, clients and a server, what may travel between them, how it is counted."""

from polyfed.federation.fields import (
    Counts,
    Declared,
    Indices,
    LikeWeights,
    Number,
    Probabilities,
    RowNumbers,
    Table,
)
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.method import (
    Fleet,
    Method,
    MethodSettings,
    Need,
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
    "Assistant",
    "Client",
    "Counts",
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
]
