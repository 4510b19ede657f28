from __future__ import annotations

from collections import Counter

import pytest
import torch

from polyfed.errors import ConfigError
from polyfed.federation.topology import complete, neighbours, pairs, ring, star


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_in_a_complete_topology_everyone_hears_everyone_else() -> None:
    assert complete([3, 5, 9]) == {3: [5, 9], 5: [3, 9], 9: [3, 5]}


def test_in_a_ring_everyone_hears_both_sides_in_the_order_of_the_nodes() -> None:
    assert ring([4, 7, 1, 8]) == {4: [7, 8], 7: [4, 1], 1: [7, 8], 8: [4, 1]}


def test_a_ring_of_two_is_one_link_and_a_ring_of_one_is_none() -> None:
    assert ring([4, 7]) == {4: [7], 7: [4]}
    assert ring([4]) == {4: []}


def test_in_a_star_only_the_first_hears_everyone() -> None:
    assert star([2, 0, 1]) == {2: [0, 1], 0: [2], 1: [2]}
    assert star([2]) == {2: []}


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_pairs_hear_each_other_and_at_most_one_stays_alone(count: int) -> None:
    nodes = list(range(10, 10 + count))
    heard = pairs(nodes, generator())
    assert list(heard) == nodes
    assert sum(not others for others in heard.values()) == count % 2
    for node, others in heard.items():
        assert all(heard[other] == [node] for other in others)


def test_pairs_are_drawn_from_the_generator_alone() -> None:
    nodes = list(range(20))
    assert pairs(nodes, generator(1)) == pairs(nodes, generator(1))
    assert pairs(nodes, generator(1)) != pairs(nodes, generator(2))


def test_every_pair_is_equally_likely() -> None:
    stream = generator()
    met = Counter(pairs([0, 1, 2, 3], stream)[0][0] for _ in range(600))
    # 200 each, standard deviation √(600 · ⅓ · ⅔) = 11.5
    assert all(abs(met[other] - 200) < 50 for other in (1, 2, 3))


def test_only_pairs_draw_from_the_generator() -> None:
    stream = generator()
    before = stream.get_state()
    neighbours("complete", [0, 1, 2], stream)
    neighbours("ring", [0, 1, 2], stream)
    neighbours("star", [0, 1, 2], stream)
    assert torch.equal(stream.get_state(), before)
    assert neighbours("pairs", [0, 1, 2], stream) == pairs([0, 1, 2], generator())
    assert not torch.equal(stream.get_state(), before)


def test_an_unknown_topology_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no topology 'rign': did you mean 'ring'"):
        neighbours("rign", [0, 1], generator())  # type: ignore[arg-type]
