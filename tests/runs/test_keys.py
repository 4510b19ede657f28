"""Dotted keys: how they are written, set, merged and flattened."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.errors import ConfigError
from polyfed.runs.keys import flatten, merge, outer_first, parse_assignment, set_key


def test_maps_merge_key_by_key_and_later_ones_win() -> None:
    first = {"method": {"name": "fedmd", "distil": {"epochs": 5, "lr": 0.1}}, "rounds": 50}
    second = {"method": {"distil": {"epochs": 1}}, "rounds": 5}
    assert merge(first, second) == {
        "method": {"name": "fedmd", "distil": {"epochs": 1, "lr": 0.1}},
        "rounds": 5,
    }


def test_a_dotted_key_sets_what_it_names_whole() -> None:
    first = {"models": {"clients": {"0-5": "wrn-10-1", "6-9": "wrn-16-1"}, "norm": "group"}}
    assert merge(first, {"models.clients": {"0-1": "mlp"}}) == {
        "models": {"clients": {"0-1": "mlp"}, "norm": "group"}
    }
    nested = merge(first, {"models": {"clients": {"0-1": "mlp"}}})
    assert list(nested["models"]["clients"]) == ["0-5", "6-9", "0-1"]


def test_a_method_given_by_its_name_can_be_given_settings() -> None:
    assert merge({"method": "fedprox"}, {"method.mu": 0.1}) == {"method": {"name": "fedprox", "mu": 0.1}}
    assert merge({"method": "fedprox"}, {"method": {"mu": 0.1}}) == {"method": {"name": "fedprox", "mu": 0.1}}
    assert merge({"method": {"name": "fedprox", "mu": 0.1}}, {"method": "local"}) == {"method": "local"}


def test_a_layer_that_chooses_another_kind_drops_what_only_the_old_one_has() -> None:
    base = {
        "data": {"partition": {"kind": "dirichlet", "alpha": 0.1}},
        "method": {"name": "fedmd", "lwof": None},
    }
    for layer in ({"data": {"partition": {"kind": "iid"}}}, {"data.partition.kind": "iid"}):
        assert merge(base, layer)["data"] == {"partition": {"kind": "iid"}}
    assert merge(base, {"method": {"name": "local"}})["method"] == {"name": "local"}
    assert merge(base, {"method.name": "local"})["method"] == {"name": "local"}


def test_a_wrong_key_in_the_layer_that_chooses_stays_and_can_be_refused() -> None:
    base = {"data": {"partition": {"kind": "shards", "shards_per_client": 3}}}
    kept = {"data": {"partition": {"kind": "iid", "alpha": 1}}}
    assert merge(base, {"data": {"partition": {"alpha": 1, "kind": "iid"}}}) == kept
    assert merge(base, {"data.partition.alpha": 1, "data.partition.kind": "iid"}) == kept


def test_what_is_merged_is_left_as_it_was() -> None:
    first = {"data": {"partition": {"kind": "iid"}}}
    merge(first, {"data.partition.kind": "shards"})["data"]["partition"]["kind"] = "other"
    assert first == {"data": {"partition": {"kind": "iid"}}}


def test_nothing_can_be_set_inside_a_value() -> None:
    with pytest.raises(
        ConfigError, match=r"^training\.lr\.x: 'lr' is a value, nothing can be set inside it$"
    ):
        merge({"training": {"lr": 0.1}}, {"training.lr.x": 1})
    assert merge({"training": 3}, {"training": {"lr": 0.1}}) == {"training": {"lr": 0.1}}


def test_setting_a_key_makes_the_maps_around_it_and_leaves_shared_ones_alone() -> None:
    shared = {"lr": 0.5}
    content: dict[str, Any] = {"training": shared, "data": None}
    set_key(content, "training.lr", 0.1)
    set_key(content, "data.partition.kind", "iid")
    assert content == {"training": {"lr": 0.1}, "data": {"partition": {"kind": "iid"}}}
    assert shared == {"lr": 0.5}


def test_flat_keys_set_one_by_one_give_the_nested_content_back() -> None:
    nested = {"a": {"b": {"c": 1, "d": []}, "e": {}}, "f": None}
    flat = flatten(nested)
    assert flat == {"a.b.c": 1, "a.b.d": [], "a.e": {}, "f": None}
    assert merge(flat) == nested


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("training.lr=0.1", ("training.lr", "0.1")),
        ("data.source=a=b", ("data.source", "a=b")),
        ("name=", ("name", "")),
        ("rounds", None),
        ("=3", None),
        ("data..clients=3", None),
    ],
)
def test_an_assignment_is_a_dotted_key_and_a_text(text: str, parsed: tuple[str, str] | None) -> None:
    assert parse_assignment(text) == parsed


def test_a_section_is_set_before_what_is_inside_it() -> None:
    assert outer_first(["method.mu", "rounds", "method"]) == ["rounds", "method", "method.mu"]


def test_the_key_that_chooses_is_set_before_its_neighbours() -> None:
    keys = ["data.partition.alpha", "method.mu", "data.partition.kind", "method.name", "data.public.source"]
    assert outer_first(keys) == [
        *("method.name", "method.mu"),
        *("data.partition.kind", "data.public.source", "data.partition.alpha"),
    ]
