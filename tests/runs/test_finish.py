"""A run that was stopped is given its result where it is; nothing is trained, and it can go on all the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.conftest import Command
from tests.runs.test_extend import die_at, everything
from torch import nn

import polyfed
from polyfed.engines import Inline
from polyfed.errors import CheckpointError, ConfigError, Divergence, RunError
from polyfed.federation.method import registered
from polyfed.runs.checkpoint import RunDirectory, read_lines
from polyfed.runs.history import RunRecord
from polyfed.runs.rounds import Run
from polyfed.testing import Trial, result_of

fork = multiprocessing.get_context("fork")

STOPPED = "after round 2 of 6: it was asked to finish"


def stopped_at(number: int, config: dict[str, Any], path: Path, **changes: Any) -> polyfed.Run:
    """A run that was stopped after a round, closed."""
    return polyfed.run(
        config,
        out=path,
        listener=lambda run: run.stop() if run.round == number else None,
        **{"rounds": 6, "workers": 1, **changes},
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path / "history.jsonl"))


# -- where it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_stopped_run_is_given_what_a_run_of_so_many_rounds_would_have_had(
    small: dict[str, Any], tmp_path: Path, method: str
) -> None:
    whole = polyfed.run(small, method=method, rounds=2, out=tmp_path / "whole", workers=1)
    run = stopped_at(2, small, tmp_path / "run", method=method)
    assert not run.finished
    assert not RunRecord(run.path).finished
    assert run.finish() is run
    assert run.finished
    assert run.stopped == STOPPED
    found, expected = everything(run.path), everything(whole.path)
    assert found["summary"].pop("stopped") == STOPPED
    assert yaml.safe_load(found.pop("config")) == {**yaml.safe_load(expected.pop("config")), "rounds": 6}
    assert found == expected


def test_a_finished_run_is_shown_compared_drawn_and_its_models_predict(
    command: Command, small: dict[str, Any], tmp_path: Path
) -> None:
    stopped_at(2, small, tmp_path / "run")
    polyfed.run(small, method="local", rounds=6, out=tmp_path / "local", workers=1)
    said = command("show", "run")
    assert "`polyfed finish run` gives it its result as it is" in said.out
    said = command("finish", "run", "--workers", 1)
    assert said.code == 0
    assert f"stopped early {STOPPED}" in said.out
    assert "(2)" in said.out  # the last round, above the table's column
    assert (tmp_path / "run" / "curves.png").exists()
    assert "chosen on" in command("show", "run").out
    compared = command("compare", "run", "local")
    assert compared.code == 0
    assert "local has 6 rounds instead of 2" in " ".join(compared.out.split())
    model = polyfed.load_model("run", "client-1")
    assert len(model.predict(torch.zeros(3, 8, 8, dtype=torch.uint8)).classes) == 3
    again = command("resume", "run", "--no-figure")
    assert again.code == 0
    told = "run has finished already; `polyfed resume run --rounds N` goes on to N rounds."
    assert told in again.out
    assert f"stopped early {STOPPED}" in again.out
    assert told in command("finish", "run", "--no-figure").out


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_that_was_not_evaluated_is_evaluated_then_and_nothing_is_trained(
    small: dict[str, Any], tmp_path: Path, workers: int
) -> None:
    """Scores are those of a run of as many rounds; states, and bytes of training, are what they were."""
    every = {**small, "method": "fedavg", "evaluate": {"every": 4}}
    run = stopped_at(2, every, tmp_path / "run", workers=workers)
    before = result_of(run.path)
    assert before["history"] == []
    run = polyfed.reopen(run.path, workers=workers).finish()
    whole = polyfed.run(every, rounds=2, out=tmp_path / "whole", workers=1)
    measured = ("round", "summary", "clients")
    ((found_line,), (expected_line,)) = (lines_of(each.path) for each in (run, whole))
    assert [found_line[key] for key in measured] == [expected_line[key] for key in measured]
    assert found_line["bytes"] == expected_line["bytes"]
    found = result_of(run.path)
    assert {part: found[part] for part in ("states", "server state")} == {
        part: before[part] for part in ("states", "server state")
    }
    assert found["models"] == result_of(whole.path)["models"]
    # What the look cost is in the ledger, as evaluation.
    new = found["ledger"][len(before["ledger"]) :]
    assert {(line["round"], row[3]) for line in new for row in line["rows"]} == {(2, "evaluation")}
    assert run.summary["bytes"] == whole.summary["bytes"]


def test_the_servers_own_model_is_evaluated_too(small: dict[str, Any], tmp_path: Path) -> None:
    content = {**small, "method": "fedkem", "models": {"names": ["mlp-small"], "server": "mlp-small"}}
    content["data"] = {**small["data"], "public": {"source": "share", "share": 0.2}}
    whole = polyfed.run(content, rounds=2, out=tmp_path / "whole", workers=1)
    run = stopped_at(2, content, tmp_path / "run", evaluate={"every": 4}).finish()
    assert run.summary["last"]["server"]["global"] == whole.summary["last"]["server"]["global"]
    assert run.summary["last"]["own"] == whole.summary["last"]["own"]


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("rounds", [5, 6])
def test_it_goes_on_and_ends_as_if_it_had_never_been_finished(
    small: dict[str, Any], tmp_path: Path, every: int, rounds: int
) -> None:
    """To other rounds than it had been meant for, and to the same; the extra evaluation stays, as when extended."""
    content = {**small, "method": "fedavg", "evaluate": {"every": every}}
    whole = polyfed.run(content, rounds=rounds, out=tmp_path / "whole", workers=1)
    run = stopped_at(2, content, tmp_path / "run").finish()
    done = polyfed.resume(run.path, rounds=rounds, workers=2)
    assert done.round == rounds
    assert "stopped" not in done.summary
    found, expected = everything(run.path), everything(whole.path)
    if every == 4:
        assert found["history"][0]["round"] == 2
        for part in (found, expected):
            part["history"] = [
                {**line, "bytes": None} for line in part["history"] if line["round"] not in (0, 2)
            ]
            part["ledger"] = [row for line in part["ledger"] for row in line["rows"] if row[3] == "training"]
    assert found == expected


@pytest.mark.parametrize("name", ["fedmd", "fedkem", "scaffold", "spatl", "fedproto"])
def test_a_look_in_between_changes_nothing_of_what_a_method_keeps(name: str, tmp_path: Path) -> None:
    """Finished after a round that was not evaluated, then gone on with: models, states, shelf and the server's."""
    trial = Trial(registered()[name], {}, {"evaluate": {"every": 50}}, tmp_path)
    whole = result_of(trial.run("whole", Inline()))
    part = trial.make("part", Inline())
    part.go(lambda run: run.stop())
    part.close()
    assert part.finish().summary["rounds"] == 1
    again = Run(trial.federation(), Inline(), RunDirectory(part.path, new=False), extended=True)
    again.go()
    again.close()
    found = result_of(part.path)
    for what in ("models", "states", "shelf", "server state"):
        assert found[what] == whole[what]


def test_a_listener_can_finish_a_run_that_goes_on(small: dict[str, Any], tmp_path: Path) -> None:
    whole = polyfed.run(small, rounds=2, out=tmp_path / "whole", workers=1)
    ready = polyfed.prepare(small, rounds=6, out=tmp_path / "run", workers=1)

    def enough(run: polyfed.Run) -> None:
        if run.round == 2:
            run.finish()

    ready.go(enough)
    assert ready.finished
    ready.close()
    assert ready.summary["stopped"] == STOPPED
    assert result_of(ready.path) == result_of(whole.path)


def test_a_finished_run_that_is_finished_again_stays_as_it_is(small: dict[str, Any], tmp_path: Path) -> None:
    run = stopped_at(2, small, tmp_path / "run").finish()
    before = everything(run.path)
    run.finish()
    polyfed.reopen(run.path, workers=1).finish()
    polyfed.resume(run.path, workers=1)
    assert everything(run.path) == before
    (run.path / "summary.json").unlink()  # what messages on damaged results say to do
    polyfed.resume(run.path, workers=1)
    assert everything(run.path) == before
    full = polyfed.run(small, rounds=2, out=tmp_path / "full", workers=1)
    before = everything(full.path)
    full.finish()
    assert everything(full.path) == before
    assert "stopped" not in full.summary


# -- refused ---------------------------------------------------------------------------------------------------


def test_before_the_first_round_there_is_nothing_to_finish(
    command: Command, small: dict[str, Any], tmp_path: Path
) -> None:
    ready = polyfed.prepare(small, out=tmp_path / "run", workers=1)
    with pytest.raises(RunError, match="has done no round yet"):
        ready.finish()
    ready.open()
    ready.close()
    said = command("finish", "run")
    assert (said.code, said.err) == (2, "polyfed: run has done no round yet: there is nothing to finish\n")
    said = command("finish", "nowhere")
    assert said.code == 2
    assert said.err == "polyfed: nowhere is not a run directory: there is no manifest.json\n"
    assert polyfed.resume("run", workers=1).finished


def test_as_many_rounds_as_are_done_or_fewer_are_refused(small: dict[str, Any], tmp_path: Path) -> None:
    run = stopped_at(2, small, tmp_path / "run").finish()
    with pytest.raises(ConfigError, match="has done 2 rounds already: give more than 2"):
        polyfed.resume(run.path, rounds=1)
    before = everything(run.path)
    assert polyfed.resume(run.path, rounds=2, workers=1).round == 2
    assert everything(run.path) == before


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_models_from_python_are_needed_again(command: Command, small: dict[str, Any], tmp_path: Path) -> None:
    run = stopped_at(2, {**small, "models": {}}, tmp_path / "run", models={"net": small_net})
    said = command("finish", "run")
    assert (said.code, said.err) == (2, "polyfed: 'net' is a model of your own: pass it again as models=…\n")
    done = polyfed.reopen(run.path, models={"net": small_net}, workers=1).finish()
    assert done.summary["rounds"] == 2


def test_code_that_a_run_names_must_be_trusted(
    command: Command, small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "finish_models.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    stopped_at(2, {**small, "models": {"names": ["finish_models:net"]}}, tmp_path / "run")
    said = command("finish", "run")
    assert said.code == 2
    assert "--trust finish_models" in said.err
    assert "`polyfed finish run --trust finish_models`" in command("show", "run").out
    assert command("finish", "run", "--trust", "finish_models", "--no-figure").code == 0


def test_where_no_client_can_be_scored_there_is_no_result_and_the_run_is_as_it_was(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped_at(2, {**small, "evaluate": {"every": 4}}, tmp_path / "run")
    before = result_of(run.path)

    def nothing(*_args: object) -> dict[int, Any]:
        return {}

    with monkeypatch.context() as patch:
        patch.setattr("polyfed.runs.evaluation.Evaluation.look", nothing)
        with pytest.raises((RunError, Divergence), match="no client could be scored"):
            run.finish()
    assert polyfed.reopen(run.path, workers=1).finish().summary["rounds"] == 2
    assert result_of(run.path)["states"] == before["states"]


# -- killed in the middle --------------------------------------------------------------------------------------


def finish(path: Path, step: int) -> None:
    torch.set_num_threads(1)
    ready = polyfed.reopen(path, workers=1)
    die_at(step)
    ready.finish()
    os._exit(0)


@pytest.mark.parametrize("then", ["finish", "resume"])
def test_killed_at_any_step_it_can_be_finished_again_or_goes_on(
    small: dict[str, Any], tmp_path: Path, then: str
) -> None:
    """`kill -9` before each change to the directory; it is a run that was stopped, or one that was finished."""
    content = {**small, "data": {**small["data"], "clients": 2}, "evaluate": {"every": 4}, "rounds": 4}
    stopped_at(1, content, tmp_path / "run", rounds=4)
    whole = polyfed.run(content, out=tmp_path / "whole", workers=1)
    finished = polyfed.reopen(shutil.copytree(tmp_path / "run", tmp_path / "finished"), workers=1).finish()
    expected, killed = everything(finished.path), 0
    for step in range(1, 40):
        path = shutil.copytree(tmp_path / "run", tmp_path / f"run-{step}")
        process = fork.Process(target=finish, args=(path, step))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        if then == "finish":
            polyfed.reopen(path, workers=1).finish()
            assert everything(path) == expected
            continue
        ended = json.loads((path / "manifest.json").read_text()).get("ended", False)
        done = polyfed.resume(path, workers=1)
        assert done.round == (1 if ended else 4)
        if ended:
            assert everything(path) == expected
        else:
            assert result_of(path)["models"] == result_of(whole.path)["models"]
    assert killed >= 5


def go_on(path: Path, rounds: int, step: int) -> None:
    torch.set_num_threads(1)
    die_at(step)
    directory = RunDirectory(path, new=False)
    directory.rewind()
    directory.set_rounds(rounds, again=True)
    os._exit(0)


@pytest.mark.parametrize("rounds", [3, 4])
def test_killed_while_it_is_to_go_on_it_goes_to_no_other_round_than_was_asked_for(
    small: dict[str, Any], tmp_path: Path, rounds: int
) -> None:
    content = {**small, "data": {**small["data"], "clients": 2}}
    run = stopped_at(1, content, tmp_path / "run", rounds=4).finish()
    whole = polyfed.run(content, rounds=rounds, out=tmp_path / "whole", workers=1)
    before, killed, reached = everything(run.path), 0, set()
    for step in range(1, 40):
        path = shutil.copytree(run.path, tmp_path / f"run-{step}")
        process = fork.Process(target=go_on, args=(path, rounds, step))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        killed += 1
        done = polyfed.resume(path, workers=1)
        reached.add(done.round)
        if done.round == 1:
            of = yaml.safe_load((path / "config.yaml").read_text())["rounds"]
            assert done.summary["stopped"] == f"after round 1 of {of}: it was asked to finish"
            assert result_of(path) == {part: before[part] for part in result_of(path)}
        polyfed.resume(path, rounds=rounds, workers=1)
        assert everything(path) == everything(whole.path)
    assert killed >= 5
    assert reached <= {1, rounds}


def test_a_manifest_that_says_something_else_of_its_end_is_refused(
    small: dict[str, Any], tmp_path: Path
) -> None:
    from polyfed.runs.manifest import seal

    run = stopped_at(2, small, tmp_path / "run").finish()
    manifest = json.loads((run.path / "manifest.json").read_text())
    del manifest["digest"]
    manifest["ended"] = "yes"
    manifest["digest"] = seal({key: value for key, value in manifest.items() if key != "digest"})
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="edited"):
        polyfed.resume(run.path, workers=1)


def test_help_says_what_it_does(command: Command) -> None:
    said = command("finish", "--help")
    assert "Nothing is trained" in " ".join(said.out.split())
    assert re.search(r"^ *finish +Give a stopped run its result", command("--help").out, re.MULTILINE)
