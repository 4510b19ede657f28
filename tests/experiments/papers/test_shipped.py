"""The papers that come with polyfed: each loads, each config is valid, each claim holds on the paper's numbers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from polyfed import models
from polyfed.data import Dirichlet
from polyfed.experiments import papers
from polyfed.experiments.papers import Paper
from polyfed.experiments.papers.claims import check_printed
from polyfed.experiments.papers.results import count_parameters, read_printed
from polyfed.experiments.papers.terms import columns_judged, terms_of
from polyfed.experiments.reproduce.measured import find_printed
from polyfed.experiments.reproduce.plan import check_ready, config_of, plan_reproduction
from polyfed.federation.method import find
from polyfed.schema import printed_in

SHIPPED = papers.known()


@pytest.fixture(params=SHIPPED)
def paper(request: pytest.FixtureRequest) -> Paper:
    return papers.load(request.param)


def test_the_five_papers_are_there() -> None:
    assert {"lwof", "fedkf", "fedorion", "fedkem", "fedh2l"} <= set(SHIPPED)


def test_a_paper_can_be_looked_up(paper: Paper) -> None:
    assert re.search(r"\b20\d\d\b", paper.cite)
    assert paper.links


@pytest.mark.evidence
def test_every_config_at_every_scale_passes_the_checks_of_a_run_file(paper: Paper) -> None:
    for scale in paper.scales:
        for run in paper.runs:
            for setting in paper.settings:
                config_of(paper, run, setting, scale, seed=1)


def test_no_paper_leans_on_defaults_that_are_chosen_here(paper: Paper) -> None:
    """Training, and every setting whose default is not what its source prints: the file says which it takes."""
    setting = next(iter(paper.settings))
    for run, scale in itertools.product(paper.runs, paper.scales):
        said = paper.config(run, setting, scale, seed=1)
        assert {"epochs", "batch", "optimiser", "lr"} <= said["training"].keys(), (run, scale)
        method = said["method"] if isinstance(said["method"], dict) else {"name": said["method"]}
        for key, field in find(method["name"]).Settings.model_fields.items():
            for printed in printed_in(field):
                assert key in method, (run, scale)
                if isinstance(printed.value, BaseModel):
                    ours, theirs = field.default.model_dump(), printed.value.model_dump()
                    assert {each for each in ours if ours[each] != theirs[each]} <= {*method[key]}


@pytest.mark.evidence
def test_every_table_and_figure_can_be_planned_at_every_scale(paper: Paper) -> None:
    for key, item in {**paper.tables, **paper.figures}.items():
        for scale in paper.scales_of(item):
            assert plan_reproduction(f"{paper.id}/{key}", scale=scale, seeds=1).paper == paper


def test_every_table_and_figure_is_ready_to_be_measured_at_tiny(paper: Paper, tmp_path: Path) -> None:
    """Data, models and what the methods need are at hand, for each of its runs."""
    for key, item in {**paper.tables, **paper.figures}.items():
        if "tiny" in paper.scales_of(item):
            check_ready(plan_reproduction(f"{paper.id}/{key}", scale="tiny", seeds=1, out=tmp_path))


DOES_NOT_HOLD = {
    (
        "lwof",
        "table2",
        "The global model outperforms client models at the global update stage by 3 % to 4 % (3 or more)",
    ): {
        "le10-a05"  # 2.73
    },
    ("lwof", "table3", "LwoF improves the personalised client models by 5 % for α = 0.1"): {
        "le10-a01"
    },  # 4.78
}
"""Where a paper says more than its own numbers do; its `slips` say so."""


def test_every_claim_holds_on_the_papers_own_numbers_but_for_known_slips(paper: Paper) -> None:
    """Where it prints them: of a ratio it may print the ratio alone, of a figure no number at all."""
    for key, table in paper.tables.items():
        for claim in table.claims:
            fails = DOES_NOT_HOLD.get((paper.id, key, claim.text), set())
            for place in columns_judged(claim, key, paper):
                terms = terms_of(claim, key)
                printed = all(
                    read_printed(
                        paper, term.table, paper.tables[term.table].row(term.row), term.column or place or ""
                    )
                    != {}
                    for term in terms
                )
                expected = None if not printed else place not in fails
                assert check_printed(claim, key, place, find_printed(paper)).holds is expected, (
                    claim.text,
                    place,
                )


SHOWN_IN_FIGURES = ("convergence", "smoothness", "ensembles")
"""Tables of what a paper only draws or tells."""


def test_only_ratios_and_figures_are_claimed_of_without_printed_numbers(paper: Paper) -> None:
    for key, table in paper.tables.items():
        for claim in table.claims:
            for place in columns_judged(claim, key, paper):
                if check_printed(claim, key, place, find_printed(paper)).holds is None:
                    assert claim.ratio or key in SHOWN_IN_FIGURES or key.startswith("figure"), claim.text


def test_differences_add_up_in_the_paper(paper: Paper) -> None:
    for key, table in paper.tables.items():
        for row in table.rows:
            for column, number in row.paper.items() if row.difference else ():
                derived = row.model_copy(update={"paper": {}})
                difference = read_printed(paper, key, derived, column)
                assert number.value == pytest.approx(difference, abs=0.011), (row.key, column)


def test_what_is_scaled_is_said(paper: Paper) -> None:
    for scale in paper.scales.values():
        assert scale.says or not (scale.set or scale.runs or scale.settings)


def test_000_table_1_counts_what_the_paper_prints() -> None:
    """Up to the paper's own rounding; its totals of FedAvg are those of WRN-34-1."""
    table = papers.load("lwof").tables["table1"]
    for row in table.rows:
        assert row.parameters is not None
        counted = count_parameters(table, row.parameters)
        printed = row.paper["parameters"]
        unit = 1e6 if printed.text.endswith("m") else 1e3
        slip = row.key in ("fedavg-40", "fedavg-60", "fedavg-100")
        assert (abs(counted - printed.value) <= (0.05 if unit == 1e6 else 0.51) * unit) != slip, row.key


# -- fedkf ----------------------------------------------------------------------------------------------------


FEDKF_CLIENTS = 20


@pytest.mark.parametrize("key", ["table3", "table4", "table5"])
def test_001_prints_a_variance_that_its_mean_and_minimum_allow(key: str) -> None:
    """Of 20 accuracies up to 1 with this mean and minimum: a number or a power of ten copied wrongly would show.

    AMP weighs clients by their rows, so that the mean is not quite known: the bounds are half and twice as large.
    """
    table = papers.load("fedkf").tables[key]
    powers = {"hundredths": 1e-2, "thousandths": 1e-3}
    rows = [row for row in table.rows if row.paper]
    assert len(rows) == 8
    for row in rows:
        assert all("±" in number.text for number in row.paper.values())
        for alpha in ("a1", "a01", "a001"):
            mean, least = (row.paper[f"{alpha}-{measure}"].value / 100 for measure in ("amp", "wlp"))
            column = table.column(f"{alpha}-fm")
            variance = row.paper[column.key].value * powers[table.column_unit(column)]
            below = mean - least
            assert below > 0
            assert 0.5 * below**2 / (FEDKF_CLIENTS - 1) <= variance <= 2 * (1 - mean) * below, (
                row.key,
                alpha,
            )
            assert f"×10⁻{'²' if column.unit == 'hundredths' else '³'}" in column.name


@pytest.mark.parametrize(
    ("run", "setting", "said"),
    [
        ("fedkf", "cifar10-a1", {"gamma": 0.001, "lambda1": 0.1, "lambda2": 0.1, "noise": 1000}),
        ("fedkf", "cifar10-a001", {"gamma": 1.0, "lambda1": 0.1, "lambda2": 0.1, "noise": 1000}),
        ("fedkf", "cifar100-a1", {"gamma": 1.0, "lambda1": 0.01, "lambda2": 0.1, "noise": 1000}),
        ("fedkf", "emnist-a01", {"gamma": 1.0, "lambda1": 0.01, "lambda2": 0.1, "noise": 100}),
        ("fedkf-authors", "cifar10-a01", {"flavour": "authors", "gamma": 1.0, "lambda1": 0.1}),
        ("fedkf-authors", "emnist-a1", {"flavour": "authors", "adversarial": False, "lambda1": 0.01}),
        ("fedprox", "cifar10-a1", {"mu": 0.001}),
        ("fedprox-t1", "cifar100-a01", {"mu": 0.0001, "inactive": "cached"}),
        ("fedprox", "emnist-a001", {"mu": 0.001}),
        ("fedgkd", "cifar100-a1", {"gamma": 0.2, "buffer": 5, "wait": True}),
        ("fedgkd-t1", "emnist-a1", {"gamma": 0.001, "inactive": "cached"}),
        ("qffl", "emnist-a1", {"q": 0.0001}),
        ("fedavg-t1", "cifar10-a1", {"inactive": "cached"}),
    ],
)
def test_001_weights_are_those_printed_for_each_data_set(
    run: str, setting: str, said: dict[str, object]
) -> None:
    settings = config_of(papers.load("fedkf"), run, setting, "paper", seed=0).method.settings
    assert {key: settings.get(key) for key in said} == said


def test_001_at_the_papers_scale_is_what_section_6_1_says() -> None:
    paper = papers.load("fedkf")
    for setting, lr, model in (("cifar10-a01", 0.1, "resnet8-fedkf"), ("emnist-a1", 0.01, "lenet5-fedkf")):
        for run in paper.runs:
            config = config_of(paper, run, setting, "paper", seed=0)
            assert (config.rounds, config.data.clients, config.cohort.fraction) == (100, FEDKF_CLIENTS, 0.2)
            assert (config.training.epochs, config.training.batch, config.training.lr) == (10, 64, lr)
            assert (config.data.test, config.data.validation) == (0.2, 0.0)
            assert config.models.names == [model]


# -- fedorion -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "setting", "said"),
    [
        ("fedorion", "hom", {"names": ["wrn-40-1"], "server": "wrn-40-1", "shares": {}}),
        ("fedkemf", "l-het", {"names": ["resnet20", "resnet32", "shufflenetv2"], "server": "resnet20"}),
        ("global-resnet32", "h-het", {"server": "resnet32", "assign": "random"}),
        ("skip-53", "c100-b06", {"shares": {"wrn-40-1": 0.53}, "server": "wrn-40-1"}),
    ],
)
def test_002_models_are_those_of_section_4(run: str, setting: str, said: dict[str, object]) -> None:
    models = config_of(papers.load("fedorion"), run, setting, "paper", seed=0).models.model_dump()
    assert {key: models[key] for key in said} == said


def test_002_at_the_papers_scale_is_what_section_4_says() -> None:
    paper = papers.load("fedorion")
    for setting, rounds, clients, present in (
        ("h-het", 100, 30, 9),
        ("c10-n30-b001", 100, 30, 10),
        ("c10-n100-b01", 100, 100, 10),
        ("c100-b01", 100, 20, 10),
        ("timg-b06", 150, 20, 10),
    ):
        for run in paper.runs:
            config = config_of(paper, run, setting, "paper", seed=0)
            assert (config.rounds, config.data.clients, config.cohort.size(clients)) == (
                rounds,
                clients,
                present,
            )
            local = config.training
            assert (local.epochs, local.batch, local.lr, local.momentum) == (10, 32, 0.01, 0.9)
            distil = getattr(config.method_settings(), "distil", None)
            alone = run in ("fedmd", "ktpfl")  # nothing is learnt on the server
            if distil is not None:
                assert (distil.epochs, distil.optimiser, distil.momentum) == (5, "sgd", 0.9)
                assert (distil.batch, distil.lr) == ((32, 0.01) if alone else (128, 0.001))


def test_002_global_models_at_other_scales_are_those_of_the_clients_that_skip_mutual_learning() -> None:
    paper = papers.load("fedorion")
    for scale in paper.scales:
        for setting in paper.settings:
            config = config_of(paper, "fedorion", setting, scale, seed=0)
            assert config.models.server in config.models.names
            shared = config_of(paper, "skip-53", setting, scale, seed=0).models
            assert setting == "l-het" or [*shared.shares] == [shared.server]


# -- fedkem ---------------------------------------------------------------------------------------------------


FEDKEM_TABLE_1 = {
    "n30-mix20": (6, 5, 10, 9),
    "n30-mix32": (0, 8, 13, 9),
    "n50-mix20": (13, 10, 14, 13),
    "n50-mix32": (0, 13, 20, 17),
    "n100-mix20": (26, 24, 28, 22),
    "n100-mix32": (0, 31, 34, 35),
}
"""Clients with ResNet-20, ResNet-32, ResNet-44 and VGG-11."""


def _clients_by_model(setting: str, scale: str) -> dict[str, int]:
    """How many clients have each model, once every one of them is named by exactly one range."""
    config = config_of(papers.load("fedkem"), "fedkem", setting, scale, seed=0)
    counts: dict[str, int] = {}
    named: list[int] = []
    for where, model in config.models.clients.items():
        first, _, last = where.partition("-")
        members = range(int(first), int(last or first) + 1)
        named += members
        counts[model] = len(members)
    assert isinstance(config.data.clients, int)
    assert sorted(named) == list(range(config.data.clients))
    return counts


@pytest.mark.parametrize("setting", FEDKEM_TABLE_1)
def test_003_clients_have_the_models_of_table_1(setting: str) -> None:
    """At a smaller scale, as many of each as the nearest whole numbers of their shares allow."""
    printed = FEDKEM_TABLE_1[setting]
    names = ("resnet20", "resnet32", "resnet44", "vgg11")
    expected = {name: count for name, count in zip(names, printed, strict=True) if count}
    assert _clients_by_model(setting, "paper") == expected
    counted = next(row for row in papers.load("fedkem").tables["table1"].rows if row.key == setting)
    assert counted.parameters == expected
    for scale, names in (
        ("small", ("cnn-small", "cnn", "resnet8", "lenet-caffe")),
        ("tiny", ("mlp-small", "mlp", "mlp-large", "cnn")),
    ):
        found = _clients_by_model(setting, scale)
        assert set(found) == {name for name, count in zip(names, printed, strict=True) if count}
        clients = sum(found.values())
        for name, count in zip(names, printed, strict=True):
            assert abs(found.get(name, 0) - clients * count / sum(printed)) < 1


def test_003_at_the_papers_scale_is_what_section_4_1_says() -> None:
    paper = papers.load("fedkem")
    for setting, clients, cohort in (
        ("n30-vgg11", 30, 12),
        ("n50-resnet20", 50, 35),
        ("n100-resnet32", 100, 40),
    ):
        for run in paper.runs:
            config = config_of(paper, run, setting, "paper", seed=0)
            assert (config.rounds, config.training.epochs, config.training.batch) == (200, 10, 64)
            assert (config.data.clients, config.cohort.size(clients)) == (clients, cohort)
            assert config.data.partition == Dirichlet(alpha=0.1, dialect="balanced")
            labels = "own" if run == "fedkem-labels" else "none"
            assert (config.data.public.share, config.data.public.labels) == (0.1, labels)
    assert config_of(paper, "fedkem", "n30-vgg11", "paper", seed=0).models.server == "resnet20"
    assert config_of(paper, "fedkem", "n30-mix32", "paper", seed=0).models.server == "resnet32"


@pytest.mark.parametrize("scale", ["paper", "small", "tiny"])
def test_003_all_methods_train_on_the_same_rows_and_are_looked_at_as_often(scale: str) -> None:
    paper = papers.load("fedkem")
    for setting in ("n50-vgg11", "n100-mix32"):
        ours = config_of(paper, "fedkem", setting, scale, seed=0)
        for run in paper.runs:
            theirs = config_of(paper, run, setting, scale, seed=0)
            assert (theirs.data.public.labels == "own") == (run == "fedkem-labels")
            data = theirs.data.model_copy(update={"public": ours.data.public})
            assert data.public.model_copy(update={"labels": theirs.data.public.labels}) == theirs.data.public
            assert (data, theirs.training, theirs.cohort) == (ours.data, ours.training, ours.cohort)
            assert (theirs.rounds, theirs.evaluate.every) == (ours.rounds, ours.evaluate.every)
            assert theirs.evaluate.test_rows == ours.evaluate.test_rows


@pytest.mark.parametrize(
    ("scale", "table", "shape"), [("paper", "figure6", (3, 32, 32)), ("small", "figure6-small", (3, 16, 16))]
)
def test_003_savings_are_claimed_by_sizes_that_the_models_have(
    scale: str, table: str, shape: tuple[int, int, int]
) -> None:
    """What is asked of the bytes saved is less than the ratio of the two models: as many rounds are enough."""
    paper = papers.load("fedkem")
    claims = [
        claim
        for claim in paper.tables[table].claims
        if claim.ratio is not None and claim.ratio[0].startswith("fedavg")
    ]
    assert len(claims) == (3 if scale == "paper" else 6)
    for claim in claims:
        for column in claim.only:
            [local] = config_of(paper, "fedavg", column, scale, seed=0).models.names
            server = config_of(paper, "fedkem", column, scale, seed=0).models.server or ""
            sizes = [models.size(name, shape, 10).parameters for name in (local, server)]
            assert claim.at_least is not None
            assert sizes[0] / sizes[1] > claim.at_least
    if scale == "small":
        exact = {claim.at_least for claim in claims if "true sizes" in claim.text}
        assert exact == {3.9, 11}  # of 3.94 and 11.2


def test_003_printed_bytes_are_what_its_slips_say_they_are_made_of() -> None:
    table = papers.load("fedkem").tables["figure6"]
    sizes = {"resnet20": 1.05e6, "resnet32": 1.6e6, "vgg11": 21e6}
    for row, column, clients, rounds, size in (
        ("fedkem-bytes", "n50-resnet32", 35, 28, "resnet20"),
        ("spatl-bytes", "n50-resnet32", 12, 124, "resnet32"),
        ("fedkem-low-bytes", "n100-vgg11", 1, 35, "resnet20"),
        ("fedprox-low-bytes", "n100-vgg11", 1, 17, "vgg11"),
    ):
        printed = table.row(row).paper[column].value
        assert printed == pytest.approx(clients * rounds * 2 * sizes[size], rel=0.01), row


# -- fedh2l ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["table2", "table3", "table4", "table7", "table8"])
def test_004_prints_averages_of_what_it_prints_of_its_nodes(key: str) -> None:
    """To the last digit: a number copied wrongly would show. (Two cells of Table VII are lost and follow from this.)"""
    table = papers.load("fedh2l").tables[key]
    for row in table.rows:
        for measure in ("acc", "wdp", "cdp") if row.paper else ():
            nodes = [
                number.value
                for column, number in row.paper.items()
                if column.endswith(measure) and not column.startswith("avg")
            ]
            assert len(nodes) == 4
            assert row.paper[f"avg-{measure}"].value == pytest.approx(sum(nodes) / 4, abs=0.0101), row.key


def test_004_accuracy_over_all_is_that_of_the_own_and_three_other_domains_but_for_known_slips() -> None:
    slips = set()
    for row in papers.load("fedh2l").tables["table2"].rows:
        for node in ("m0", "m20", "m40", "m60"):
            acc, wdp, cdp = (row.paper[f"{node}-{measure}"].value for measure in ("acc", "wdp", "cdp"))
            if abs(acc - (wdp + 3 * cdp) / 4) > 0.012:
                slips.add((row.key, node))
    assert slips == {("fedh2l-5", "m20"), ("fedh2l-5", "m40"), ("agg-15", "m20"), ("ind", "m60")}


@pytest.mark.parametrize(
    ("name", "table", "row", "column", "printed"),
    [
        ("lwof", "table2", "drop-out", "le5-a05", 7.09),
        ("lwof", "table2", "drop-out", "le5-a01", 13.11),
        ("lwof", "table3", "gain", "le5-a05", 1.74),
        ("lwof", "table3", "gain", "le5-a01", 5.58),
        ("lwof", "table3", "gain", "le10-a01", 4.78),
    ],
)
def test_000_rows_that_claims_need_follow_from_the_printed_ones(
    name: str, table: str, row: str, column: str, printed: float
) -> None:
    paper = papers.load(name)
    assert read_printed(paper, table, paper.tables[table].row(row), column) == pytest.approx(printed)


def test_000_says_what_it_chose_by_outcome_with_every_number_that_depends_on_it() -> None:
    paper = papers.load("lwof")
    for row in paper.tables["table3"].rows:
        if row.key != "initial":  # which is before LwoF
            assert "chosen by outcome" in row.note
    assert any("ρ" in reading and "chosen by outcome" in reading for reading in paper.readings)


def test_000_states_its_readings_of_the_split_the_start_and_the_normalisation() -> None:
    """And they are what a run does."""
    paper = papers.load("lwof")
    said = " ".join(paper.readings)
    partition = config_of(paper, "fedavg-100", "le5-a01", "paper", seed=0).data.partition
    assert isinstance(partition, Dirichlet)
    assert f"dialect {partition.dialect}" in said
    assert "FedAvg begins with one random model for all" in said
    assert "the public CIFAR-100 by its own" in said


def test_004_judges_all_three_measures_of_table_2_as_printed() -> None:
    table = papers.load("fedh2l").tables["table2"]
    for alpha in (5, 10, 15):
        for other in (f"agg-{alpha}", f"fedmd-{alpha}", "ind"):
            claim = next(
                claim
                for claim in table.claims
                if claim.order == (f"fedh2l-{alpha}", other) and not claim.margin
            )
            assert claim.only == ("avg-acc", "avg-wdp", "avg-cdp")
    assert all(claim.margin >= 0 for claim in table.claims)


@pytest.mark.parametrize(
    "run", ["fedh2l-5", "fedh2l-10", "fedh2l-15", "ind", "agg-5", "fedmd-15", "fedavg", "e10"]
)
@pytest.mark.parametrize(("scale", "images", "tested"), [("paper", 1000, 150), ("small", 3000, 2150)])
def test_004_has_as_many_test_images_whatever_alpha_is(
    run: str, scale: str, images: int, tested: int
) -> None:
    """And as many for validation and, of those that are not public, for training as the paper."""
    config = config_of(papers.load("fedh2l"), run, "mnist", scale, seed=0)
    assert config.data.per_class == images / 10
    alpha = {"5": 50, "15": 150}.get(run.rpartition("-")[2], 100)
    assert config.data.public.share is not None
    assert round(config.data.public.share * images) == alpha
    rest = images - alpha
    assert round(config.data.validation * rest) == 100
    assert round(config.data.test * rest) == tested


def numbers_sent(rounds: int, batch: int, classes: int) -> int:
    """By a node of FedH2L, as the paper counts: posteriors and an accuracy, once per round."""
    return rounds * (batch * classes + 1)


@pytest.mark.parametrize(
    ("run", "setting", "scale", "model", "shape", "classes", "sent"),
    [
        ("fedavg", "mnist", "paper", "lenet-caffe", (1, 28, 28), 10, numbers_sent(10_000, 32, 10)),
        ("fedprox", "mnist", "small", "lenet5", (1, 28, 28), 10, numbers_sent(1000, 32, 10)),
        ("fedavg", "mnist", "tiny", "mlp-small", (1, 8, 8), 10, numbers_sent(100, 16, 10)),
        (
            "pacs-fedavg",
            "pacs-resnet18",
            "paper",
            "resnet18-imagenet",
            (3, 64, 64),
            7,
            100 * numbers_sent(10_000, 32, 7),
        ),
        (
            "office-fedprox",
            "office-home-resnet18",
            "paper",
            "resnet18-imagenet",
            (3, 64, 64),
            65,
            100 * numbers_sent(10_000, 32, 65),
        ),
    ],
)
def test_004_fedavg_has_the_bandwidth_that_it_is_said_to_have(
    run: str, setting: str, scale: str, model: str, shape: tuple[int, int, int], classes: int, sent: int
) -> None:
    """And as many local steps as FedH2L."""
    paper = papers.load("fedh2l")
    config = config_of(paper, run, setting, scale, seed=0)
    assert config.models.names == [model]
    assert config.rounds == sent // models.size(model, shape, classes).parameters
    together = "objects-fedh2l" if setting != "mnist" else "fedh2l-10"
    steps = config_of(paper, together, setting, scale, seed=0).rounds
    assert config.training.steps is not None
    assert config.rounds * config.training.steps == pytest.approx(steps, rel=0.011)


def test_004_all_take_as_many_local_steps_and_are_evaluated_as_often() -> None:
    paper = papers.load("fedh2l")
    for scale in ("paper", "small", "tiny"):
        ours = config_of(paper, "fedh2l-10", "mnist", scale, seed=0)
        for run in ("ind", "agg-5", "agg-10", "agg-15", "fedmd-5", "fedmd-10", "fedmd-15"):
            theirs = config_of(paper, run, "mnist", scale, seed=0)
            assert theirs.training.steps is not None
            assert theirs.rounds * theirs.training.steps == ours.rounds
            assert theirs.evaluate.every * theirs.training.steps == ours.evaluate.every
            assert theirs.training.optimiser == ours.training.optimiser == "amsgrad"
            assert theirs.training.keep_optimiser
            assert (theirs.training.lr, theirs.training.batch) == (ours.training.lr, ours.training.batch)


@pytest.mark.parametrize(
    ("name", "table", "words", "judged"),
    [
        ("fedkf", "smoothness", "more robust than other solutions", 12),
        ("fedkf", "smoothness", "fluctuation amplitude", 3),
        ("fedorion", "table3", "without any compromise", 1),
        ("fedkem", "figure5", "SPATL performs well with 30 and 50 clients", 18),
        ("fedkem", "figure4-rounds", "70 % accuracy after 110 rounds", 1),
    ],
)
def test_what_a_text_says_beside_its_tables_is_judged(name: str, table: str, words: str, judged: int) -> None:
    paper = papers.load(name)
    claims = [claim for claim in paper.tables[table].claims if words in claim.text]
    assert sum(len(columns_judged(claim, table, paper)) for claim in claims) == judged


def test_what_is_not_taken_or_not_judged_is_said() -> None:
    assert any("3.25" in slip and "3.35" in slip for slip in papers.load("fedorion").slips)
    assert any("cosine" in reading and "not taken" in reading for reading in papers.load("fedkem").readings)
