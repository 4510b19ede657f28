"""polyfed from Python: the user's own models and data, awkward clients, and models read back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.readers import whole_test
from torch import Tensor, nn

import polyfed
from polyfed import learn
from polyfed.errors import CheckpointError, ConfigError, ModelError, UserError
from polyfed.runs.config import pick_device, read_config
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

Pair = tuple[Tensor, Tensor]


class Net(nn.Module):
    """A user's plain module: two layers and a BatchNorm, nothing of polyfed's."""

    def __init__(self, width: int = 16, outputs: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.conv(x)).relu().mean((2, 3))
        logits: Tensor = self.out(hidden)
        return logits


def small_net() -> nn.Module:
    return Net(8)


def wide_net() -> nn.Module:
    return Net(16)


@pytest.fixture
def stripes() -> Pair:
    """Three kinds of stripes, easy to tell apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 3
    x = 0.3 * torch.randn(240, 1, 8, 8, generator=generator)
    x[y == 0, :, ::2] += 1
    x[y == 1, :, :, ::2] += 1
    return x, y


def test_own_models_and_data_in_five_lines(stripes: Pair, tmp_path: Path) -> None:
    done = polyfed.run(
        method="local", rounds=5, data=stripes, models=[small_net, wide_net], out=tmp_path / "mine"
    )
    assert done.summary["last"]["own"]["mean"] > 0.6
    assert set(done.summary["last"]["architectures"]) == {"small_net", "wide_net"}
    model = polyfed.load_model(done.path, "client-1", make=wide_net)
    x, y = whole_test(done.federation).tensors()
    right, total = learn.score(model, x, y)
    assert [right, total] == done.last["clients"]["client-1"]["whole"]  # type: ignore[index]


def test_own_models_resume_when_given_again(stripes: Pair, tmp_path: Path) -> None:
    config: dict[str, Any] = {"method": "local", "rounds": 4, "checkpoint_seconds": 0}
    whole = polyfed.run(config, data=stripes, models=[small_net], out=tmp_path / "whole", workers=1)
    part = polyfed.prepare(config, data=stripes, models=[small_net], out=tmp_path / "part", workers=1)
    part.go(lambda run: run.stop() if run.round == 2 else None)
    part.close()
    polyfed.resume(part.path, data=stripes, models=[small_net], workers=2)
    assert result_of(part.path) == result_of(whole.path)


def test_final_models_are_read_back_exactly(small: dict[str, Any], tmp_path: Path) -> None:
    done = polyfed.run(small, method="fedavg", out=tmp_path / "run", workers=1)
    one, other = (polyfed.load_model(done.path, name) for name in ("client-0", "client-3"))
    kept = done.server.memory["weights"]["mlp-small"]
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, kept[name])
        assert torch.equal(tensor, other.state_dict()[name])
    with pytest.raises(CheckpointError, match="no final model 'client-9'"):
        polyfed.load_model(done.path, "client-9")


def test_an_own_model_needs_its_maker_to_be_read_back(stripes: Pair, tmp_path: Path) -> None:
    done = polyfed.run(
        method="local", rounds=1, data=stripes, models=[small_net], out=tmp_path / "run", workers=1
    )
    with pytest.raises(ConfigError, match="make="):
        polyfed.load_model(done.path, "client-0")


@pytest.mark.parametrize("model", ["mlp-small", "cnn", "resnet8"])
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_clients_with_one_sample_one_class_or_less_than_a_batch_take_part(
    tmp_path: Path, model: str, method: str
) -> None:
    """BatchNorm included: 1, 2, 5 and 33 samples a client with batches of 32, each client of a single class."""
    counts = [1, 2, 5, 33]
    rows = ["path,label,owner"]
    pixels = np.random.default_rng(0).integers(0, 256, (sum(counts), 8, 8), dtype=np.uint8)
    owners = [owner for owner, count in enumerate(counts) for _ in range(count)]
    for number, owner in enumerate(owners):
        Image.fromarray(pixels[number]).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{owner % 3},{owner}")
    (tmp_path / "data.csv").write_text("\n".join(rows))
    config = {
        "method": method,
        "rounds": 2,
        "data": {
            "source": str(tmp_path / "data.csv"),
            "image": "path",
            "label": "label",
            "partition": {"kind": "natural", "column": "owner"},
        },
        "models": {"names": [model]},
    }
    done = polyfed.run(config, out=tmp_path / "run", workers=1)
    assert len(done.federation.roster) == 4
    assert done.federation.roster[0].samples == 1
    assert "failures" not in (done.last or {})
    weights = polyfed.load_model(done.path, "owner-0").state_dict()
    assert all(bool(torch.isfinite(tensor.float()).all()) for tensor in weights.values())


def test_outputs_that_disagree_with_the_classes_are_refused(stripes: Pair, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 5 outputs, but the data have 3 classes"):
        polyfed.run(data=stripes, models=[lambda: Net(outputs=5)], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrong_number_of_channels_is_refused(stripes: Pair, tmp_path: Path) -> None:
    x, y = stripes
    with pytest.raises(ModelError, match="1"):
        polyfed.run(data=(x.expand(-1, 3, -1, -1), y), models=[small_net], out=tmp_path / "run")


def test_a_maker_that_makes_no_module_is_refused(stripes: Pair, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not an nn\.Module"):
        polyfed.run(data=stripes, models={"odd": lambda: 3}, out=tmp_path / "run")  # type: ignore[dict-item, return-value]


def test_budgets_give_each_client_the_largest_model_that_fits(small: dict[str, Any], tmp_path: Path) -> None:
    """On 8×8 digits mlp-small has 64·64+64 + 64·10+10 = 4,810 parameters, mlp 64·128+128 + 128·128+128 + 1,290."""
    models = {
        "names": ["mlp", "mlp-small"],
        "assign": "budget",
        "budgets": [{"parameters": 5_000}, {"parameters": 30_000}],
    }
    run = polyfed.prepare({**small, "method": "local", "models": models}, out=tmp_path / "run", workers=1)
    assert [run.federation.roster.architecture(index) for index in range(4)] == ["mlp-small", "mlp"] * 2
    run.close()


def test_models_by_name_and_range(small: dict[str, Any], tmp_path: Path) -> None:
    models = {"names": ["mlp"], "clients": {"1-2": "mlp-small", "client-3": "cnn-small"}}
    run = polyfed.prepare({**small, "method": "local", "models": models}, out=tmp_path / "run", workers=1)
    names = [run.federation.roster.architecture(index) for index in range(4)]
    assert names == ["mlp", "mlp-small", "mlp-small", "cnn-small"]
    run.close()


def test_rotated_domains_share_one_split_of_the_images() -> None:
    config = {
        "data": {"limit": 100, "partition": {"kind": "rotated", "angles": [0, 30, 60]}},
        "method": "local",
    }
    federation = set_up(read_config(config))
    origins = [
        {
            part: set(getattr(federation.holdings.of(index), part).column("origin").tolist())
            for part in ("train", "test")
        }
        for index in range(len(federation.roster))
    ]
    assert len(federation.roster) == 3
    assert origins[0] == origins[1] == origins[2]
    assert not origins[0]["train"] & origins[1]["test"]


def test_runs_with_more_or_less_public_data_hold_out_the_same_images() -> None:
    """The paper's splits of 1,000 images: 50, 100 or 150 are public, 100 for validation and 150 for test."""
    found = []
    for public in (50, 100, 150):
        source = {"source": "digits", "per_class": 100, "public": {"source": "share", "share": public / 1000}}
        shares = {"validation": 100 / (1000 - public), "test": 150 / (1000 - public)}
        config = {"data": {**source, **shares, "partition": {"kind": "rotated"}}, "method": "local"}
        held = set_up(read_config(config)).holdings.seen_by(0)
        assert held.public is not None
        parts = (held.train, held.validation, held.test, held.public)
        found.append([set(part.column("origin").tolist()) for part in parts])
        assert list(map(len, found[-1])) == [750 - public, 100, 150, public]
        assert len(set.union(*found[-1])) == 1000
    few, some, many = found
    assert few[1:3] == some[1:3] == many[1:3]
    assert few[3] < some[3] < many[3]


def test_real_data_run_with_a_public_set_of_other_images(real_data: Path, tmp_path: Path) -> None:
    config = {
        "method": "local",
        "rounds": 1,
        "data": {
            "source": "mnist",
            "limit": 400,
            "clients": 2,
            "public": {"source": "fashion_mnist", "rows": 100, "labels": "none"},
        },
        "models": {"names": ["lenet5", "mlp"]},
        "evaluate": {"test_rows": 500},
    }
    done = polyfed.run(config, out=tmp_path / "run", workers=2)
    assert done.federation.holdings.public is not None
    assert len(done.federation.holdings.public) == 100
    assert done.summary["last"]["whole"]["mean"] > 0.15


def test_natural_clients_are_the_writers(real_data: Path, tmp_path: Path) -> None:
    config = {
        "method": "fedavg",
        "rounds": 1,
        "data": {"source": "femnist", "partition": {"kind": "natural", "column": "writer_id"}},
        "models": {"names": ["mlp-small"]},
        "cohort": {"count": 5},
        "evaluate": {"clients": 5, "test_rows": 200},
    }
    done = polyfed.run(config, out=tmp_path / "run", workers=1)
    assert len(done.federation.roster) == 100


def test_an_unknown_device_is_a_users_mistake() -> None:
    with pytest.raises(ConfigError, match="mps"):
        pick_device("mps")
    assert pick_device("auto").type == "cpu"


def test_everything_exported_is_there_and_user_errors_are_one_family() -> None:
    assert len(set(polyfed.__all__)) == len(polyfed.__all__)
    assert all(hasattr(polyfed, name) for name in polyfed.__all__)
    assert issubclass(ModelError, UserError)


def test_a_run_with_own_data_and_models_says_what_to_pass_again(stripes: Pair, tmp_path: Path) -> None:
    run = polyfed.prepare(
        method="local", rounds=3, data=stripes, models=[small_net], out=tmp_path / "run", workers=1
    )
    run.go(lambda now: now.stop())
    run.close()
    with pytest.raises(UserError, match="models="):
        polyfed.resume(run.path, data=stripes)
    with pytest.raises(UserError, match="data="):
        polyfed.resume(run.path, models=[small_net])
    assert polyfed.resume(run.path, data=stripes, models=[small_net], workers=1).finished


def test_every_client_of_a_large_population_has_the_shared_model(
    small: dict[str, Any], tmp_path: Path
) -> None:
    small["data"]["clients"] = 30
    done = polyfed.run(small, evaluate={"clients": 3}, rounds=1, out=tmp_path / "run", workers=1)
    assert polyfed.load_model(done.path, "client-29") is not None


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("workers", [1, 2])
def test_where_gradients_are_off_it_learns_the_same(
    small: dict[str, Any], tmp_path: Path, off: Callable[[], AbstractContextManager[None]], workers: int
) -> None:
    usual = polyfed.run(small, out=tmp_path / "usual", workers=1)
    with off():
        done = polyfed.run(small, out=tmp_path / "off", workers=workers, listener=lambda run: run.stop())
        polyfed.resume(done.path, workers=workers)
        model = polyfed.load_model(done.path, "client-0")
        assert not torch.is_grad_enabled()
    assert result_of(usual.path) == result_of(done.path)
    assert all(weight.requires_grad and not weight.is_inference() for weight in model.parameters())
