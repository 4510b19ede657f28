"""How pieces of run files are laid over each other."""

from __future__ import annotations

from polyfed.experiments.papers import Paper
from polyfed.experiments.papers.fragments import merged


def test_maps_merge_key_by_key_and_later_ones_win() -> None:
    first = {"method": {"name": "fedmd", "distil": {"epochs": 5, "lr": 0.1}}, "rounds": 50}
    second = {"method": {"distil": {"epochs": 1}}, "rounds": 5}
    assert merged(first, second) == {
        "method": {"name": "fedmd", "distil": {"epochs": 1, "lr": 0.1}},
        "rounds": 5,
    }


def test_a_dotted_key_sets_what_it_names_whole() -> None:
    first = {"models": {"clients": {"0-5": "wrn-10-1", "6-9": "wrn-16-1"}, "norm": "group"}}
    assert merged(first, {"models.clients": {"0-1": "mlp"}}) == {
        "models": {"clients": {"0-1": "mlp"}, "norm": "group"}
    }
    nested = merged(first, {"models": {"clients": {"0-1": "mlp"}}})
    assert list(nested["models"]["clients"]) == ["0-5", "6-9", "0-1"]


def test_a_method_given_by_its_name_can_be_given_settings() -> None:
    assert merged({"method": "fedprox"}, {"method.mu": 0.1}) == {"method": {"name": "fedprox", "mu": 0.1}}
    assert merged({"method": "fedprox"}, {"method": {"mu": 0.1}}) == {
        "method": {"name": "fedprox", "mu": 0.1}
    }
    assert merged({"method": {"name": "fedprox", "mu": 0.1}}, {"method": "local"}) == {"method": "local"}


def test_fragments_are_left_as_they_were() -> None:
    first = {"data": {"partition": {"kind": "iid"}}}
    merged(first, {"data.partition.kind": "shards"})["data"]["partition"]["kind"] = "other"
    assert first == {"data": {"partition": {"kind": "iid"}}}


def test_the_order_is_base_run_setting_scale_and_seed() -> None:
    """Each layer says what it is in a key that all above it set too: the last to speak is heard."""
    layers = ["base", "run", "setting", "all", "this-run", "this-setting"]
    said = [
        {"method": {f"from-{place}": layer for place in range(number, 7)}}
        for number, layer in enumerate(layers)
    ]
    paper = Paper.model_validate(
        {
            "id": "x",
            "title": "t",
            "cite": "c",
            "base": said[0],
            "runs": {"r": said[1]},
            "settings": {"s": {"name": "S", "set": said[2]}},
            "scales": {"tiny": {"set": said[3], "runs": {"r": said[4]}, "settings": {"s": said[5]}}},
        }
    )
    config = paper.config("r", "s", "tiny", 7)
    assert [config["method"][f"from-{place}"] for place in range(7)] == [*layers, "this-setting"]
    assert (config["name"], config["seed"]) == ("r-s-7", 7)
