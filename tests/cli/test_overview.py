"""The shipped file that compares all methods: all are in it, each can be set up, and the page shows what came out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.conftest import Command

from polyfed.cli.examples import yaml_text
from polyfed.experiments.sweep import named_variants
from polyfed.federation.declaration import Need
from polyfed.federation.method import registered
from polyfed.learn import Training
from polyfed.report.selection import Wishes, select
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.setup import set_up

PAGE = Path(__file__).parents[2] / "docs" / "overview.md"
OURS = {name: kind for name, kind in registered().items() if kind.__module__.startswith("polyfed.")}
CONFIGS = {
    name: read_config(content)
    for name, content in named_variants(yaml.safe_load(yaml_text("overview.yaml"))).items()
}
MIXED = {name: config for name, config in CONFIGS.items() if len(config.models.names) > 1}


def methods_of(configs: dict[str, RunConfig]) -> list[str]:
    return sorted(config.method.name for config in configs.values())


def test_every_method_is_compared_and_with_different_models_every_one_that_can() -> None:
    same = {name: config for name, config in CONFIGS.items() if name not in MIXED}
    assert methods_of(same) == sorted(OURS)
    able = [name for name, verdict in select(Wishes(different_models=True)).items() if not verdict.obstacles]
    assert methods_of(MIXED) == sorted(set(able) & set(OURS))


def test_all_have_the_same_federation_and_the_same_training() -> None:
    base = CONFIGS["fedavg"]
    assert base.training == Training()
    for name, config in CONFIGS.items():
        assert config.training == base.training
        assert config.data.partition == base.data.partition
        assert (config.models.server, config.models.norm) == ("cnn-small", "group")
        assert config.rounds == base.rounds
        kind = OURS[config.method.name]
        labels = Need.PUBLIC_LABELS in kind(config.method_settings(), Training()).declared.needs
        assert (config.data.public.labels == "own") == labels == name.startswith("aggregated")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_variant_can_be_set_up(name: str) -> None:
    assert len(set_up(CONFIGS[name]).roster) == 8


def test_the_page_has_a_row_for_each_variant() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == list(CONFIGS)


def test_a_user_gets_the_file_and_is_told_what_to_do_with_it(command: Command) -> None:
    said = command("new", "all.yaml", "--example", "overview")
    assert said.code == 0
    assert "polyfed sweep all.yaml --seeds 3" in said.out
    assert Path("all.yaml").read_text() == yaml_text("overview.yaml")
    wrong = command("new", "other.yaml", "--example", "overvew")
    assert wrong.code == 2
    assert "overview" in wrong.err
    assert not Path("other.yaml").exists()
