"""Views of data pickle whole: however a process gets a federation, it sees the same labels and constants."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runs.hospitals import hospitals

from polyfed.disk import digest
from polyfed.engines import Inline, Pool
from polyfed.federation.engine import Engine
from polyfed.runs.checkpoint import RunDirectory
from polyfed.runs.config import read_config
from polyfed.runs.federation import Federation
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up
from polyfed.testing import result_of

ROOT = Path(__file__).parents[2]


def federations(folder: Path) -> dict[str, Federation]:
    """One whose clients bring their own data, and one that is cut and normalised by client; public classes differ."""
    own = hospitals(folder) | {"method": "fedmd"}
    own["data"]["classes"] = ["malignant", "benign"]  # not the order in which they were read
    cut = {"limit": 200, "clients": 3, "normalise": "client", "public": {"source": "share", "share": 0.2}}
    return {
        "own": set_up(read_config(own)),
        "cut": set_up(read_config({"method": "fedmd", "data": cut, "models": {"server": "mlp-small"}})),
    }


def seen(federation: Federation) -> list[str]:
    """Digests of all that clients can see, as tensors."""
    found = []
    for index in range(len(federation.roster)):
        data = federation.holdings.seen_by(index)
        for rows in (data.train, data.validation, data.test, data.public, data.whole_test):
            if rows is not None:
                constants = (rows.dataset.mean, rows.dataset.std, rows.dataset.classes)
                tensors = [tensor.numpy().tobytes() for tensor in rows.tensors()]
                found.append(digest(b"".join([*tensors, repr(constants).encode()])))
    return found


def _tell(federation: Federation, answers: Any) -> None:
    answers.put(seen(federation))


@pytest.mark.parametrize("kind", ["own", "cut"])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_another_process_sees_the_same(tmp_path: Path, kind: str, start: str) -> None:
    federation = federations(tmp_path)[kind]
    context: Any = multiprocessing.get_context(start)
    answers = context.Queue()
    process = context.Process(target=_tell, args=(federation, answers))
    process.start()
    assert answers.get(timeout=60) == seen(federation)
    process.join()


IN_RAY = """
import sys, tempfile
from pathlib import Path
import ray
from tests.engines.test_views import federations, seen

with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    for federation in federations(Path(sys.argv[1])).values():
        assert ray.get(ray.remote(seen).remote(federation)) == seen(federation)
        assert ray.get(ray.remote(seen).remote(ray.put(federation))) == seen(federation)
    ray.shutdown()
print("the same")
"""


@pytest.mark.slow
def test_a_worker_of_ray_sees_the_same(tmp_path: Path) -> None:
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", IN_RAY, str(tmp_path)],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip().endswith("the same"), done.stderr[-2000:]


@pytest.mark.slow
def test_own_data_give_the_same_result_forked_spawned_and_inline(tmp_path: Path) -> None:
    found = []
    engines: dict[str, Engine] = {
        "inline": Inline(),
        "fork": Pool(2, start_method="fork"),
        "spawn": Pool(2, start_method="spawn"),
    }
    for name, engine in engines.items():
        run = Run(federations(tmp_path)["own"], engine, RunDirectory(tmp_path / name, new=True))
        run.go()
        run.close()
        found.append(result_of(run.path))
    assert found[0] == found[1] == found[2]
