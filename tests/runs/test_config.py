from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from polyfed.data import PARTITIONS, Dirichlet, PublicSettings
from polyfed.data.partition import Iid, Quantity
from polyfed.errors import ConfigError, MethodError, UserError
from polyfed.federation.method import registered
from polyfed.methods.fedprox import FedProxSettings
from polyfed.runs.config import RunConfig, pick_device, read_config
from polyfed.runs.keys import merge
from polyfed.schema import settings_of

EXAMPLES = Path(str(resources.files("polyfed"))) / "examples"


def refusal(content: Any, *overrides: str) -> str:
    """The message with which a config is refused: one line, of a length that can be read."""
    with pytest.raises(UserError) as caught:
        read_config(content, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


# -- unknown keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rouns": 3}, "rouns: unknown key, did you mean 'rounds'?"),
        ({"data": {"partion": {}}}, "data.partion: unknown key, did you mean 'partition'?"),
        (
            {"data": {"partition": {"kind": "dirichlet", "alph": 1}}},
            "data.partition.alph: unknown key, did you mean 'alpha'?",
        ),
        (
            {"data": {"partition": {"kind": "pathological", "class_per_client": 1}}},
            "data.partition.class_per_client: unknown key, did you mean 'classes_per_client'?",
        ),
        ({"data": {"public": {"shre": 0.1}}}, "data.public.shre: unknown key, did you mean 'share'?"),
        ({"training": {"lrr": 1}}, "training.lrr: unknown key, did you mean 'lr'?"),
        ({"models": {"name": ["mlp"]}}, "models.name: unknown key, did you mean 'names'?"),
        (
            {"models": {"budgets": [{}, {"paramters": 3}]}},
            "models.budgets.1.paramters: unknown key, did you mean 'parameters'?",
        ),
        ({"cohort": {"drop_out": 0.1}}, "cohort.drop_out: unknown key, did you mean 'dropout'?"),
        ({"evaluate": {"evry": 1}}, "evaluate.evry: unknown key, did you mean 'every'?"),
        ({"method": {"name": "fedprox", "muu": 1}}, "method.muu: unknown key, did you mean 'mu'?"),
        (
            {"method": {"name": "fedavg", "zzz": 1}},
            "method.zzz: unknown key, known: batch_norm, inactive, unseen, weighting, within",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_key_names_the_nearest_at_every_depth(content: dict[str, Any], message: str) -> None:
    assert refusal(content) == message


def test_an_unknown_kind_of_partition_names_the_nearest_or_lists_them() -> None:
    assert refusal({"data": {"partition": {"kind": "dirichlt"}}}) == (
        "data.partition.kind: unknown kind 'dirichlt', did you mean 'dirichlet'?"
    )
    assert refusal({"data": {"partition": {"kind": "zzz"}}}) == (
        "data.partition.kind: unknown kind 'zzz',"
        " known: dirichlet, function, iid, natural, pathological, quantity, rotated, rows, shards"
    )


def test_where_there_are_no_settings_that_is_said() -> None:
    assert refusal({"method": {"name": "local", "mu": 1}}) == (
        "method.mu: unknown key, local has no settings of its own"
    )


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(MethodError, match="no method 'fedprx': did you mean 'fedprox'"):
        read_config({"method": "fedprx"})


def test_several_mistakes_are_counted() -> None:
    assert refusal({"rouns": 3, "sed": 1}) == "rouns: unknown key, did you mean 'rounds'? (and 1 more)"


# -- types and ranges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"rounds": "many"}, "rounds"),
        ({"seed": -1}, "seed"),
        ({"name": 3}, "name"),
        ({"data": None}, "data"),
        ({"data": {"clients": 0}}, "data.clients"),
        ({"data": {"validation": 1}}, "data.validation"),
        ({"data": {"test": -0.1}}, "data.test"),
        ({"data": {"test": float("nan")}}, "data.test"),
        ({"data": {"validation": 0.5, "test": 0.5}}, "data"),
        ({"data": {"size": 4}}, "data.size"),
        ({"data": {"partition": "iid"}}, "data.partition"),
        ({"data": {"partition": {"kind": "natural"}}}, "data.partition.column"),
        ({"data": {"partition": {"kind": "dirichlet", "alpha": 0}}}, "data.partition.alpha"),
        ({"data": {"public": {"source": "share"}}}, "data.public"),
        ({"data": {"public": {"labels": "all"}}}, "data.public.labels"),
        ({"models": {"names": []}}, "models.names"),
        ({"models": {"names": [3]}}, "models.names.0"),
        ({"models": {"clients": {"0": 3}}}, "models.clients.0"),
        ({"models": {"budgets": [{"macs": 0}]}}, "models.budgets.0.macs"),
        ({"models": {"budgets": [{"memory_mb": float("inf")}]}}, "models.budgets.0.memory_mb"),
        ({"models": {"norm": "layer"}}, "models.norm"),
        ({"training": {"epochs": 0}}, "training.epochs"),
        ({"training": {"lr": 0}}, "training.lr"),
        ({"training": {"lr": float("nan")}}, "training.lr"),
        ({"training": {"momentum": 1}}, "training.momentum"),
        ({"training": {"clip": 0}}, "training.clip"),
        ({"training": {"optimiser": "sdg"}}, "training.optimiser"),
        ({"training": {"augment": "sometimes"}}, "training.augment"),
        ({"cohort": {"fraction": 0}}, "cohort.fraction"),
        ({"cohort": {"fraction": 1.1}}, "cohort.fraction"),
        ({"cohort": {"dropout": 1}}, "cohort.dropout"),
        ({"evaluate": {"every": 0}}, "evaluate.every"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"device": "tpu"}, "device"),
        ({"method": 3}, "method"),
        ({"method": {"name": 3}}, "method.name"),
        ({"method": {"name": "fedprox", "mu": 0}}, "method.mu"),
        ({"method": {"name": "fedavg", "within": "archtecture"}}, "method.within"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line_that_begins_with_its_key(content: dict[str, Any], where: str) -> None:
    assert refusal(content).startswith(f"{where}: ")


def test_the_line_says_what_would_do_and_what_was_given() -> None:
    assert refusal({"rounds": 0}) == "rounds: must be at least 1, not 0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rounds": "many"}, "rounds: must be a whole number, not 'many'"),
        ({"rounds": 2.5}, "rounds: must be a whole number, not 2.5"),
        ({"rounds": None}, "rounds: must be a whole number, not null"),
        ({"rounds": [3]}, "rounds: must be a whole number, not a list"),
        ({"training": {"lr": "fast"}}, "training.lr: must be a number, not 'fast'"),
        ({"training": {"lr": {}}}, "training.lr: must be a number, not a section"),
        ({"training": {"lr": float("inf")}}, "training.lr: must be a finite number, not inf"),
        (
            {"training": {"augment": "maybe"}},
            "training.augment: must be true, false, or a function such as my_module:shift, not 'maybe'",
        ),
        ({"training": {"momentum": 1}}, "training.momentum: must be below 1, not 1"),
        (
            {"training": {"optimiser": "sdg"}},
            "training.optimiser: unknown optimiser 'sdg', did you mean 'sgd'?",
        ),
        ({"data": 3}, "data: must be a section of keys and values such as {a: b}, not 3"),
        ({"data": {"source": True}}, "data.source: must be text, not true"),
        (
            {"models": {"clients": ["mlp"]}},
            "models.clients: must be a section of keys and values such as {a: b}",
        ),
        ({"models": {"names": []}}, "models.names: must have at least 1 item"),
        (
            {"data": {"partition": {"kind": "natural"}}},
            "data.partition.column: is missing, and has no default",
        ),
        ({"name": "x" * 500 + "/"}, "name: "),
        ({"wire": {"up": {"logit": "half"}}}, "wire.up.logit: must be '"),
        ({3: 4}, "3: cannot be a key: a key is text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_told_in_plain_words(content: dict[Any, Any], message: str) -> None:
    said = refusal(content)
    assert said.startswith(message)
    assert "input" not in said


def test_where_two_types_would_do_both_are_named() -> None:
    assert refusal({"stack": 0}) == ("stack: must be 'auto' or at least 1, not 0")
    assert read_config({"stack": 3}).stack == 3


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([], []),
        ("auc", ["auc"]),
        ("all", ["all"]),
        (["auc", "all", "mae"], ["all"]),
        ("roc_auc_score, F1_score", ["auc", "f1"]),
        ("cohen_kappa_score, my_module:cost", ["cohen_kappa_score", "my_module:cost"]),
        (["confusion", "auc", "confusion"], ["auc", "confusion"]),
    ],
)
def test_metrics_are_a_name_a_list_or_all_in_one_order(given: Any, read: list[str]) -> None:
    config = read_config({"evaluate": {"metrics": given}})
    assert config.evaluate.metrics == read
    assert config.as_file()["evaluate"]["metrics"] == read


def test_metrics_can_be_set_on_the_command_line() -> None:
    assert read_config({}, ["evaluate.metrics=auc"]).evaluate.metrics == ["auc"]
    assert read_config({}, ["evaluate.metrics=[auc, macro-f1]"]).evaluate.metrics == ["macro-f1", "auc"]


@pytest.mark.parametrize("given", ["acu", ["auc", "acu"], [["auc"]], 3, {"auc": True}])
def test_metrics_that_are_not_known_are_refused_in_one_line(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^evaluate\.metrics[^\n]*$"):
        read_config({"evaluate": {"metrics": given}})


def test_settings_for_a_method_that_has_none_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"^method\.mu: unknown key, local has no settings of its own$"):
        read_config({"method": {"name": "local", "mu": 1}})


def test_a_cohort_larger_than_the_population_is_refused() -> None:
    cohort = read_config({"cohort": {"count": 9}}).cohort
    assert cohort.size(9) == 9
    with pytest.raises(ConfigError, match="only 8 clients"):
        cohort.size(8)


@pytest.mark.parametrize(
    ("fraction", "clients", "size"), [(0.1, 100, 10), (0.01, 8, 1), (0.5, 5, 2), (0.7, 5, 4), (1, 7, 7)]
)
def test_a_cohort_is_a_fraction_and_never_empty(fraction: float, clients: int, size: int) -> None:
    assert read_config({"cohort": {"fraction": fraction}}).cohort.size(clients) == size


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="there is no cuda here"):
        pick_device("cuda")


# -- leaving things out --------------------------------------------------------------------------------------


def test_a_partition_without_a_kind_is_the_default_one() -> None:
    assert read_config({"data": {"partition": {"alpha": 0.1}}}).data.partition == Dirichlet(alpha=0.1)
    assert read_config({}, ["data.partition.alpha=0.1"]).data.partition == Dirichlet(alpha=0.1)


@pytest.mark.parametrize(
    ("given", "drop"),
    [("id", ["id"]), (["id", "city"], ["id", "city"]), ([0, "a"], ["0", "a"]), (7, ["7"]), ([], [])],
)
def test_columns_to_drop_are_one_name_or_several(given: Any, drop: list[str]) -> None:
    assert read_config({"data": {"drop": given}}).data.drop == drop
    assert "data.drop" in refusal({"data": {"drop": [None]}})
    assert "data.drop" in refusal({"data": {"drop": None}})


def test_there_are_eight_clients_by_default_unless_the_data_decide() -> None:
    def count(data: dict[str, Any]) -> int | None:
        return read_config({"data": data}).data.client_count()

    assert count({}) == 8
    assert count({"clients": 3}) == 3
    assert count({"partition": {"kind": "rotated"}}) is None
    assert count({"partition": {"kind": "rotated"}, "clients": 3}) == 3


def test_a_client_can_be_named_by_a_number_that_yaml_reads_as_one(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("models: {clients: {0-5: mlp, 7: cnn}}")
    assert read_config(file).models.clients == {"0-5": "mlp", "7": "cnn"}


def test_budgets_are_dealt_out_in_turn_and_megabytes_are_bytes() -> None:
    models = read_config({"models": {"budgets": [{"parameters": 5}, {"memory_mb": 1.5}]}}).models
    assert [section.budget().parameters for section in models.budgets] == [5, None]
    assert models.budgets[1].budget().memory_bytes == 1_500_000


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: [1", "is not YAML"),
        ("- rounds", "must hold keys and values"),
        ("3", "must hold keys and values"),
        ("rounds: !!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_a_file_that_is_not_a_run_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert message in refusal(file)


def test_a_file_that_is_not_there_says_how_to_get_one(tmp_path: Path) -> None:
    assert "`polyfed new" in refusal(tmp_path / "run.yaml")
    (tmp_path / "photo.yaml").write_bytes(b"\xff\xd8")
    assert "cannot read" in refusal(tmp_path / "photo.yaml")


def test_a_folder_instead_of_a_file_says_what_to_do(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path) == f"{tmp_path} is a folder, not a run file; `polyfed new` writes one to start from"
    )
    (tmp_path / "mine.yaml").touch()
    assert refusal(tmp_path) == f"{tmp_path} is a folder, not a run file: perhaps {tmp_path / 'mine.yaml'}"
    (tmp_path / "manifest.json").touch()
    assert refusal(tmp_path).endswith(f": `polyfed resume {tmp_path}` goes on with the run in it")


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.touch()
    assert read_config(file) == RunConfig()


def test_a_float_without_a_point_is_a_number_in_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("training: {lr: 1e-3}\nmethod: {name: fedprox, mu: 1e-2}")
    config = read_config(file)
    assert config.training.lr == 0.001
    settings = config.make_method().settings
    assert isinstance(settings, FedProxSettings)
    assert settings.mu == 0.01


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"method": "fedprox"},
        {"method": {"name": "fedprox", "mu": 0.3}, "name": "no", "seed": 5},
        {"data": {"partition": {"kind": "iid"}, "source": "1e3"}},
        {"data": {"partition": {"kind": "rotated", "angles": [0, 90]}}},
        {"data": {"public": {"source": "share", "share": 0.1}}, "stack": 4, "timeout": 1.5},
        {"models": {"clients": {7: "mlp"}, "budgets": [{"macs": 3}]}, "training": {"lr": 1e-7}},
    ],
    ids=str,
)
def test_what_is_written_reads_back_the_same(tmp_path: Path, content: dict[str, Any]) -> None:
    config = read_config(content)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.as_file()))
    assert read_config(file) == config
    assert read_config(file).as_file() == config.as_file()


# -- overrides -----------------------------------------------------------------------------------------------


def test_overrides_reach_every_depth() -> None:
    config = read_config(
        {"training": {"lr": 0.5, "batch": 8}},
        [
            "training.lr=1e-3",
            "data.partition.kind=iid",
            "data.public.source=share",
            "data.public.share=0.25",
            "models.names=[mlp, cnn]",
            "training.clip=null",
            "cohort.count=3",
            "rounds=7",
            "name=trial",
        ],
    )
    assert (config.training.lr, config.training.batch, config.training.clip) == (0.001, 8, None)
    assert config.data.partition == Iid()
    assert config.data.public == PublicSettings(source="share", share=0.25)
    assert config.models.names == ["mlp", "cnn"]
    assert (config.cohort.count, config.rounds, config.name) == (3, 7, "trial")


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", "+1e-3", "0.001", "1.0e-3"])
def test_floats_are_read_as_people_write_them(text: str) -> None:
    assert read_config({}, [f"training.lr={text}"]).training.lr == 0.001


# -- choosing another kind -----------------------------------------------------------------------------------

NEW_FILE = EXAMPLES / "new.yaml"


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - {"natural", "rows", "function"}))
def test_another_kind_of_partition_drops_what_only_the_old_kind_has(kind: str) -> None:
    assert read_config(NEW_FILE, [f"data.partition.kind={kind}"]).data.partition.kind == kind


def test_what_both_kinds_have_is_kept() -> None:
    content = {"data": {"partition": {"alpha": 0.1, "dialect": "blocks"}}}
    assert read_config(content, ["data.partition.kind=quantity"]).data.partition == Quantity(alpha=0.1)
    same = read_config(content, ["data.partition.kind=dirichlet"]).data.partition
    assert same == Dirichlet(alpha=0.1, dialect="blocks")


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.partition.kind=iid", "data.partition.alpha=1"],
        ["data.partition.alpha=1", "data.partition.kind=iid"],
        ["data.partition={kind: iid, alpha: 1}"],
    ],
    ids=str,
)
def test_a_key_that_was_given_with_the_choice_and_that_it_does_not_have_is_an_error(
    overrides: list[str],
) -> None:
    assert refusal(NEW_FILE, *overrides).startswith("data.partition.alpha: unknown key")


def test_a_misspelt_key_of_the_file_is_an_error_whatever_is_chosen() -> None:
    content = {"data": {"partition": {"kind": "dirichlet", "alhpa": 1}}}
    assert refusal(content, "data.partition.kind=iid").startswith("data.partition.alhpa: unknown key")


def test_a_wrong_choice_is_what_is_told_not_the_keys_beside_it() -> None:
    assert refusal(NEW_FILE, "data.partition.kind=idd").startswith("data.partition.kind: unknown kind 'idd'")
    settings = {"name": "fedmd", "public_rows": 10}
    assert refusal({"method": settings}, "method.name=fedporx").startswith("no method 'fedporx'")


@pytest.mark.parametrize("override", ["method=fedprox", "method.name=fedprox"])
def test_another_method_drops_what_only_the_old_one_has(override: str) -> None:
    content = {"method": {"name": "fedmd", "public_rows": 10, "global": False}}
    config = read_config(content, [override])
    assert (config.method.name, config.method.settings) == ("fedprox", {})


def test_by_its_name_alone_another_method_keeps_settings_that_both_have() -> None:
    content = {"method": {"name": "fedmd", "public_rows": 10, "lwof": None}}
    assert read_config(content, ["method.name=dsfl"]).method.settings == {"public_rows": 10}
    assert read_config(content, ["method=dsfl"]).method.settings == {}


def test_another_public_source_drops_the_share() -> None:
    content = {"data": {"public": {"source": "share", "share": 0.2, "rows": 50}}}
    assert read_config(content, ["data.public.source=none"]).data.public == PublicSettings(rows=50)
    assert read_config(content, ["data.public.source=mnist"]).data.public.share is None
    assert "go together" in refusal(content, "data.public.source=mnist", "data.public.share=0.1")


def test_another_public_source_drops_the_kind_of_noise() -> None:
    content = {"data": {"public": {"source": "noise", "kind": "stylegan", "rows": 50}}}
    assert read_config(content, ["data.public.source=none"]).data.public == PublicSettings(rows=50)
    assert "go together" in refusal(content, "data.public.source=mnist", "data.public.kind=stylegan")
    assert "such as 5000" in refusal({}, "data.public={source: noise, kind: gaussian}")


# -- lists ---------------------------------------------------------------------------------------------------

LISTS: dict[str, tuple[Any, str, list[Any]]] = {
    "models.names": ("resnet8", "resnet8, mlp", ["resnet8", "mlp"]),
    "models.budgets": ({"parameters": 5}, "[{parameters: 5}, {macs: 3}]", [{"parameters": 5}, {"macs": 3}]),
    "models.init_except": ("head", "head, body.2", ["head", "body.2"]),
    "data.names": ("north", "north,south", ["north", "south"]),
    "data.drop": ("id", "id, row", ["id", "row"]),
    "evaluate.metrics": ("auc", "macro-f1,auc", ["macro-f1", "auc"]),
    "data.partition.angles": (30, "30, 60", [30, 60]),
}


def list_keys(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for setting in settings_of(schema):
        if setting.allowed.startswith("a list"):
            yield f"{prefix}{setting.key}"
        for group in setting.groups:
            yield from list_keys(group, f"{prefix}{setting.key}.")


def test_every_list_of_the_schema_is_tried_here() -> None:
    assert set(list_keys(RunConfig)) == {*LISTS, "data.classes"}  # of which one alone is refused
    assert [key for method in registered().values() for key in list_keys(method.Settings)] == []


@pytest.mark.parametrize("key", LISTS)
def test_where_a_list_is_wanted_a_single_value_is_a_list_of_one(key: str) -> None:
    single, several, listed = LISTS[key]
    base = {"data": {"partition": {"kind": "rotated"}}} if "angles" in key else {}
    whole = read_config(merge(base, {key: [single]}))
    assert read_config(merge(base, {key: single})) == whole
    assert read_config(base, [f"{key}={json.dumps(single)}"]) == whole
    assert read_config(base, [f"{key}={several}"]) == read_config(merge(base, {key: listed}))


def test_the_last_override_wins() -> None:
    assert read_config({"rounds": 1}, ["rounds=2", "rounds=3"]).rounds == 3


@pytest.mark.parametrize("method", ["fedprox", {"name": "fedprox"}, {"name": "fedprox", "mu": 5}])
def test_a_methods_settings_can_be_set_however_it_was_named(method: Any) -> None:
    config = read_config({"method": method}, ["method.mu=1e-3"])
    assert (config.method.name, config.method.settings) == ("fedprox", {"mu": 0.001})


@pytest.mark.parametrize("method", ["fedprox", {"name": "fedprox", "mu": 5}])
def test_another_method_does_not_keep_the_settings_of_the_old_one(method: Any) -> None:
    config = read_config({"method": method}, ["method=fedavg"])
    assert (config.method.name, config.method.settings) == ("fedavg", {})
    later = read_config({"method": method}, ["method=fedavg", "method.weighting=uniform"])
    assert later.method.settings == {"weighting": "uniform"}


@pytest.mark.parametrize(
    "override", ["rounds", "=3", "rounds 3", ".rounds=3", "data.=3", "data..clients=3", "."]
)
def test_an_override_of_another_form_says_how_to_write_it(override: str) -> None:
    assert refusal({}, override) == (f"--set {override}: write it as key=value, such as training.lr=0.1")


def test_nothing_can_be_set_inside_a_value() -> None:
    assert refusal({"rounds": 3}, "rounds.x=3") == (
        "--set rounds.x=3: 'rounds' is a value, nothing can be set inside it"
    )


def test_a_misspelt_override_names_the_nearest() -> None:
    assert refusal({}, "training.lrr=1") == "training.lrr: unknown key, did you mean 'lr'?"


def test_the_callers_content_is_left_as_it_was() -> None:
    content = {"training": {"lr": 0.5}, "method": {"name": "fedprox", "mu": 1.0}}
    read_config(content, ["training.lr=0.1", "method.mu=2"])
    assert content == {"training": {"lr": 0.5}, "method": {"name": "fedprox", "mu": 1.0}}


def test_an_override_may_hold_an_equals_sign() -> None:
    assert read_config({}, ["data.source=a=b"]).data.source == "a=b"


@pytest.mark.parametrize("override", ["rounds=", "name= ", "data.partition.kind="])
def test_an_override_without_a_value_says_so(override: str) -> None:
    assert refusal({}, override) == f"--set {override}: the value is missing; write null for none"


def test_a_key_given_twice_in_an_override_is_refused() -> None:
    override = "data.partition={kind: iid, kind: shards}"
    assert refusal({}, override) == f"--set {override}: 'kind' is there twice, in line 1: leave one out"


@pytest.mark.parametrize("name", ["../up", "", "a b", ".hidden"])
def test_a_name_that_cannot_be_a_folders_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^name: '.*' cannot be a folder's name"):
        read_config({"name": name})


# -- the examples --------------------------------------------------------------------------------------------


def test_the_template_is_exactly_the_defaults() -> None:
    template = read_config(EXAMPLES / "new.yaml")
    assert template.data.clients == RunConfig().data.client_count()
    without_count = template.model_copy(update={"data": template.data.model_copy(update={"clients": None})})
    assert without_count == RunConfig()


def keys(schema: type[BaseModel], *, skip: frozenset[str] = frozenset({"settings"})) -> set[str]:
    """Every key of a schema and of the sections in it."""
    found = set(schema.model_fields) - skip
    for field in schema.model_fields.values():
        inner = field.default
        if isinstance(inner, BaseModel):
            found |= keys(type(inner), skip=skip)
    return found


def test_the_template_mentions_every_key() -> None:
    text = (EXAMPLES / "new.yaml").read_text()
    missing = {key for key in keys(RunConfig) if not re.search(rf"\b{key}:", text)}
    assert missing == set()


def test_the_template_mentions_every_kind_of_partition() -> None:
    text = (EXAMPLES / "new.yaml").read_text()
    for kind in (
        "iid",
        "dirichlet",
        "pathological",
        "shards",
        "quantity",
        "natural",
        "rotated",
        "rows",
        "function",
    ):
        assert kind in text


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_can_be_read(path: Path) -> None:
    assert read_config(path).make_method().name
