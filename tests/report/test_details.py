"""Pages about one method, model, data set or kind of partition: all of it, and readable at 80 columns."""

from __future__ import annotations

import re
from typing import Annotated

import pytest
from pydantic import Field
from tests.conftest import Command

from polyfed import Declaration, models
from polyfed.data import PARTITIONS, known_sets
from polyfed.errors import DataError, MethodError, ModelError
from polyfed.federation.declaration import Need
from polyfed.federation.fields import field_of
from polyfed.federation.method import Method, MethodSettings, register, registered
from polyfed.learn import Training
from polyfed.report.details import data_details, method_details, model_details, partition_details
from polyfed.schema import printed_in, settings_of

SHAPE = (3, 32, 32)


def words(text: object) -> str:
    return " ".join(str(text).split())


def assert_fits(text: object, width: int) -> None:
    assert [line for line in str(text).splitlines() if len(line) > width] == []


@pytest.mark.parametrize("width", [60, 80, 150])
@pytest.mark.parametrize("name", registered())
def test_a_method_is_told_with_every_setting_within_the_width(name: str, width: int) -> None:
    page = method_details(name, width)
    assert_fits(page, width)
    said = words(page)
    assert registered()[name].summary in said
    for setting in settings_of(registered()[name].Settings):
        source = f" ({setting.printed})" if setting.printed else ""
        assert f"{setting.key}: {setting.default}{source} [{setting.allowed}]" in said
        assert setting.meaning
        assert setting.meaning in said


def test_a_default_that_is_not_the_sources_is_told_with_it_and_both_can_be_set() -> None:
    marked = {
        (kind.name, key): printed
        for kind in registered().values()
        for key, field in kind.Settings.model_fields.items()
        for printed in printed_in(field)
    }
    assert {"scaffold", "spatl", "fml", "fedproto", "ktpfl", "feddf", "fedkem", "fedh2l"} <= {
        name for name, _ in marked
    }
    for (name, key), printed in marked.items():
        kind = registered()[name]
        as_printed = getattr(kind.Settings(**{key: printed.value}), key)
        assert as_printed == printed.value != getattr(kind.Settings(), key), (name, key)
    assert "weighting: samples (the paper: uniform) [samples or uniform]" in words(
        method_details("scaffold", 80)
    )
    assert "rank: change (the authors' code: weights) [" in words(method_details("spatl", 80))


def test_a_methods_page_has_its_paper_its_needs_what_it_sends_and_keeps() -> None:
    said = words(method_details("fedmd", 80))
    for part in (
        "Shi, Radu & Yang",
        "M_k ← train on D_k (Eq. 2)",
        "needs public data; labels on the public data (not with method.public_training=null); a server model",
        "What it declares, with its default settings",
        "leaves a client logits (logits): numbers, rows × outputs",
        "when evaluated leave a client too: sums of scores (of classes: counts of right answers), at the stages"
        " initial, distilled, personalised and at the end of a round;",
        "is sent rows (indices); fields of the same names and kinds that leave clients",
        "a client keeps model and memory",
        "uses in the end its own model",
        "server takes part; needs only the mean of the replies",
        "makes sense for classification, binary, multilabel, regression",
        "public_rows: 5000 [a whole number, at least 1]",
        "distil: {epochs: 5, batch: 64, lr: 0.1, loss: l1, reduce: mean} [a section]",
        "In `distil`: How a student learns",
        "All that is in `public_training` and `private_training`, and: loss: kl",
        "temperature: 2.0 [a number, above 0]",
    ):
        assert part in said
    assert words(method_details("pooled", 80)).count("all data") == 1


@pytest.mark.parametrize("name", registered())
def test_the_whole_declaration_of_a_method_is_told(name: str) -> None:
    said = words(method_details(name, 80))
    kind = registered()[name]
    declared = kind(kind.Settings(), Training()).declared
    pooled = Need.ALL_DATA in declared.needs
    for field, what in declared.sends.items():
        assert f"{field} ({field_of(what).kind}): {field_of(what)}" in said or pooled
        assert "{" not in str(field_of(what))
    assert ("leaves a client nothing" in said) is (not declared.sends)
    assert ("leaves a client all data" in said) is pooled
    for field, sort in declared.tells.items():
        assert f"{field} ({sort})" in said
    for need, otherwise in declared.needs.items():
        assert (f"{need.value} (not with {otherwise})" if otherwise else need.value) in said
    for one in (*declared.stages, *declared.notes, *declared.keeps, *declared.task_names):
        assert one in said.partition("What it declares")[2]
    assert ("server takes no part" in said) is (not declared.server)
    if declared.server and declared.sends and not pooled:
        read = "looks at each client's reply" if declared.single_replies else "only the mean of the replies"
        assert read in said
    assert ("adds something of its own" in said) is declared.personal


def test_what_is_declared_is_told_with_the_settings_that_are_given(command: Command) -> None:
    given = ["methods", "fedkem", "--set", "method.fusion=average", "--set", "training.keep_optimiser=true"]
    said = words(command(*given).out)
    assert "What it declares, with method.fusion=average and training.keep_optimiser=true" in said
    assert "needs a server model different models" in said
    assert "a client keeps model and memory" in said
    assert "needs only the mean of the replies" in said
    wrong = command("methods", "fedkem", "--set", "method.fusion=all")
    assert wrong.code != 0 and "method.fusion" in wrong.err
    nameless = command("methods", "--set", "method.fusion=average")
    assert nameless.code != 0 and "give the name of one method before it" in nameless.err


def test_every_setting_of_a_run_file_that_a_method_or_partition_brings_has_a_meaning() -> None:
    schemas = [method.Settings for method in registered().values()] + list(PARTITIONS.values())
    groups = [group for schema in schemas for setting in settings_of(schema) for group in setting.groups]
    for schema in (*schemas, *groups):
        for setting in settings_of(schema):
            assert setting.meaning or setting.key == "kind", (schema, setting.key)


def test_a_method_of_ones_own_is_told_by_its_own_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.federation.method._registered", {})

    class MineSettings(MethodSettings):
        share: Annotated[float, Field(gt=0, le=1)] = 0.5
        """How much."""

    @register
    class Mine(Method):
        """A method that nobody knows."""

        name = "mine"
        Settings = MineSettings

        def declare(self) -> Declaration:
            return Declaration()

    said = words(method_details("mine", 80))
    assert "A method that nobody knows." in said
    assert "share: 0.5 [a number, above 0 and at most 1] How much." in said


@pytest.mark.parametrize("name", ["resnet8", "mlp", "WRN-34-1", "lenet5-fedkf", "vgg11"])
def test_a_model_is_told_with_its_sizes_and_the_head_of_its_file(name: str) -> None:
    page = model_details(name, SHAPE, 10, "batch", 80)
    assert_fits(page, 80)
    said = words(page)
    assert f"{models.size(name, SHAPE).parameters:,}" in said
    assert f"models: {{names: [{name.lower()}]}}" in said
    assert re.search(r"et al\.|and \w+, \"", said)


def test_the_shape_of_the_input_decides_the_sizes_that_are_told() -> None:
    assert "20,490" in str(model_details("mlp", (20,), 10, "batch", 80))


@pytest.mark.parametrize("name", known_sets())
def test_a_data_set_is_told_within_the_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    page = data_details(name, 80)
    assert_fits(page, 80)
    assert f"data: {{source: {name}}}" in words(page)


def test_a_data_sets_page_has_rows_columns_and_how_to_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    said = words(data_details("femnist", 80))
    for part in (
        "images 1×28×28",
        "classes 62",
        "814,277 train; no test split",
        "label column character",
        "writer_id, hsf_id (`data.partition: {kind: natural, column: writer_id}`)",
        "Caldas et al.",
        "flwrlabs/femnist",
    ):
        assert part in said


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_partition_is_told_with_every_setting(kind: str) -> None:
    page = partition_details([kind], 80)
    assert_fits(page, 80)
    said = words(page)
    for setting in settings_of(PARTITIONS[kind]):
        assert setting.key == "kind" or f"{setting.key}: {setting.default or '(must be given)'}" in said


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(MethodError, match=r"^no method 'fedmb': did you mean 'fedmd'\?$"):
        method_details("fedmb", 80)
    with pytest.raises(ModelError, match=r"did you mean 'resnet8'\?$"):
        model_details("resnet9", SHAPE, 10, "batch", 80)
    with pytest.raises(DataError, match=r"^there is no data set 'femnits': did you mean 'femnist'\?$"):
        data_details("femnits", 80)
    with pytest.raises(MethodError, match=r"^no method 'zzz': `polyfed methods` lists them$"):
        method_details("zzz", 80)
