"""The server's shelf is a dictionary of states that is in files: nothing of that shows, and few are written."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import MakeRun

from polyfed import Client, Declaration, Fields, Kind, Method, MethodSettings, client_step, learn
from polyfed.disk import SavedState, digest
from polyfed.engines import Inline, Pool
from polyfed.errors import CheckpointError
from polyfed.federation.method import Fleet
from polyfed.federation.nodes import Server
from polyfed.federation.shelf import OWNER, Shelf
from polyfed.runs.checkpoint import RunDirectory
from polyfed.runs.rounds import Run
from polyfed.testing import check_method, result_of


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit; NaN equals itself."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and type(one) is type(other)


# -- a mapping ------------------------------------------------------------------------------------------------


def test_it_is_a_mapping_in_the_order_of_first_insertion(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "scratch", cache_bytes=300)
    for key in ("b", "a", "c"):
        shelf[key] = {"x": torch.ones(30)}
    shelf["a"] = {"x": 2}
    del shelf["b"]
    shelf["b"] = {}
    assert list(shelf) == ["a", "c", "b"]
    assert len(shelf) == 3
    assert "a" in shelf and "z" not in shelf
    assert shelf.get("z") is None
    assert shelf.pop("a") == {"x": 2}
    shelf.clear()
    assert dict(shelf) == {}


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with pytest.raises(KeyError, match="client-7"):
        shelf["client-7"]
    with pytest.raises(KeyError, match="client-7"):
        del shelf["client-7"]


@pytest.mark.parametrize("cache_bytes", [0, 2**20], ids=["from a file", "from memory"])
def test_what_is_read_reads_the_same_from_memory_and_from_a_file(tmp_path: Path, cache_bytes: int) -> None:
    shelf = Shelf(tmp_path, cache_bytes)
    weights = {"w": torch.randn(3, 4), "n": torch.tensor(5), "half": torch.ones(2, dtype=torch.bfloat16)}
    shelf["a"] = {
        "weights": weights,
        "pair": (1, 2.5),
        "name": "ü",
        "none": None,
        "deep": [{"t": weights["w"]}],
    }
    expected = {
        "weights": weights,
        "pair": [1, 2.5],
        "name": "ü",
        "none": None,
        "deep": [{"t": weights["w"]}],
    }
    assert same(shelf["a"], expected)
    assert same(shelf["a"], expected)


@pytest.mark.parametrize("cache_bytes", [0, 2**20], ids=["from a file", "from memory"])
def test_a_slot_changes_only_by_assignment(tmp_path: Path, cache_bytes: int) -> None:
    shelf = Shelf(tmp_path, cache_bytes)
    given_value: dict[str, Any] = {"x": torch.zeros(4), "seen": [1]}
    shelf["a"] = given_value
    given_value["x"] += 1
    kept = shelf["a"]
    kept["x"] += 1
    kept["seen"].append(2)
    kept["more"] = True
    assert same(shelf["a"], {"x": torch.zeros(4), "seen": [1]})
    shelf["a"] = kept
    assert same(shelf["a"], {"x": torch.ones(4), "seen": [1, 2], "more": True})


@pytest.mark.parametrize(
    "value",
    [[], 5, "text", {"x": object()}, {"x": {1: 2}}],
    ids=["a list", "a number", "a text", "an object", "a number for a key"],
)
def test_what_cannot_be_saved_is_refused_when_it_is_set(tmp_path: Path, value: Any) -> None:
    shelf = Shelf(tmp_path)
    shelf["a"] = {"x": 1}
    with pytest.raises(TypeError, match="slot 'a'"):
        shelf["a"] = value
    assert shelf["a"] == {"x": 1}
    with pytest.raises(TypeError, match="a key of the shelf is a text"):
        shelf[3] = {}  # type: ignore[index]


def test_only_the_last_used_slots_are_in_memory(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "scratch", cache_bytes=10_000)
    for number in range(100):
        shelf[f"client-{number}"] = {"x": torch.full((250,), float(number))}
        assert sum(map(len, shelf._cache.values())) == shelf._cached_bytes <= 10_000
    assert len(list((tmp_path / "scratch").iterdir())) >= 90
    for number in range(100):
        assert same(shelf[f"client-{number}"], {"x": torch.full((250,), float(number))})
        assert shelf._cached_bytes <= 10_000
    shelf.clear()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_without_a_scratch_folder_everything_stays_in_memory() -> None:
    shelf = Shelf(cache_bytes=0)
    shelf["a"] = {"x": 1}
    shelf["b"] = {"x": 2}
    assert dict(shelf) == {"a": {"x": 1}, "b": {"x": 2}}


AWKWARD = [
    "",
    ".",
    "..",
    "../../escape",
    "a/b",
    "a\\b",
    "a b",
    "\0",
    "ä",
    "\ud800",
    "x" * 300,
    "client-3",
    "A",
    "a",
]


def test_no_key_leads_out_of_the_folder_and_no_two_share_a_file(tmp_path: Path) -> None:
    scratch, states = tmp_path / "in" / "scratch", tmp_path / "in" / "states"
    states.mkdir(parents=True)
    keys = AWKWARD + [
        f"{digest(key.encode(errors='replace'))}" for key in AWKWARD
    ]  # and what a hash looks like
    keys += ["a.1", "a.1.slot", "shelf/a", digest("ä".encode()) + ".hashed-slot"]
    keys = list(dict.fromkeys(keys))
    shelf = Shelf(scratch, cache_bytes=0)
    for number, key in enumerate(keys):
        shelf[key] = {"x": number}
    assert len(list(scratch.iterdir())) == len(keys)
    saved = shelf.save(states, "1")
    assert len({state.file for state in saved}) == len(keys)
    assert sorted(path.name for path in states.iterdir()) == sorted(str(state.file) for state in saved)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert list(scratch.iterdir()) == []
    assert {key: shelf[key]["x"] for key in shelf} == {key: number for number, key in enumerate(keys)}


def test_a_file_that_vanished_or_was_damaged_is_named(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "scratch", cache_bytes=0)
    (tmp_path / "damaged").write_bytes(b"no message")
    shelf.restore({"gone": tmp_path / "gone", "damaged": tmp_path / "damaged"})
    for key in shelf:
        with pytest.raises(CheckpointError, match=str(tmp_path / key)):
            shelf[key]


# -- checkpoints ----------------------------------------------------------------------------------------------


FACTS = {"prepared": True, "seconds": 0.0, "finished": False, "data": ""}


def committed(directory: RunDirectory, shelf: Shelf, number: int) -> list[SavedState]:
    if not (directory.path / "config.yaml").exists():
        directory.write_config({})
        directory.write_description({})
        directory.write_assignment({})
    saved = shelf.save(directory.path / "states", str(number))
    directory.commit(number, str(number), {}, saved, FACTS)
    return saved


def reopened(path: Path) -> tuple[RunDirectory, Shelf]:
    """As after a kill: from the files alone."""
    directory = RunDirectory(path, new=False)
    directory.rewind()
    shelf = Shelf(directory.scratch / "shelf", cache_bytes=500)
    shelf.restore(directory.shelf_files())
    return directory, shelf


def test_a_save_writes_what_changed_and_tells_what_was_deleted(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "scratch")
    for key in "abcd":
        shelf[key] = {"x": 1}
    assert [state.owner for state in shelf.save(tmp_path, "1")] == [OWNER + key for key in "abcd"]
    shelf["b"] = {"x": 2}
    shelf["e"] = {"x": 2}
    del shelf["a"]
    shelf["never saved"] = {}
    del shelf["never saved"]
    saved = shelf.save(tmp_path, "2")
    assert [(state.owner, state.file) for state in saved] == [
        ("shelf/a", None),
        ("shelf/b", "b.2.slot.safetensors"),
        ("shelf/e", "e.2.slot.safetensors"),
    ]
    assert saved[1].digest == digest((tmp_path / "b.2.slot.safetensors").read_bytes())
    assert shelf.save(tmp_path, "3") == []


def test_a_slot_deleted_and_set_again_between_two_commits_comes_last_after_a_kill(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", new=True)
    shelf = Shelf(directory.scratch / "shelf")
    shelf["a"] = shelf["b"] = {"x": 1}
    committed(directory, shelf, 1)
    del shelf["a"]
    shelf["a"] = {"x": 2}
    committed(directory, shelf, 2)
    directory.close()
    directory, again = reopened(directory.path)
    assert list(again) == list(shelf) == ["b", "a"]
    assert again["a"] == {"x": 2}
    directory.close()


def test_going_back_leaves_nothing_in_the_scratch_folder(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "scratch", cache_bytes=0)
    shelf["a"] = {"x": 1}
    assert list((tmp_path / "scratch").iterdir())
    shelf.restore({})
    assert not (tmp_path / "scratch").exists()
    shelf["a"] = {"x": 2}
    assert shelf["a"] == {"x": 2}


def test_a_commit_of_ten_among_two_thousand_slots_writes_ten_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    directory = RunDirectory(tmp_path / "run", new=True)
    shelf = Shelf(directory.scratch / "shelf", cache_bytes=100_000)
    for number in range(2000):
        shelf[f"client-{number}"] = {"x": torch.full((100,), float(number))}
    committed(directory, shelf, 1)
    before = {path.name for path in (directory.path / "states").iterdir()}
    index = (directory.path / "states.jsonl").stat().st_size
    assert len(before) == 2001  # and the server's
    for number in range(0, 2000, 200):
        shelf[f"client-{number}"] = {"x": -shelf[f"client-{number}"]["x"]}
    committed(directory, shelf, 2)
    after = {path.name for path in (directory.path / "states").iterdir()}
    expected = {f"client-{number}.2.slot.safetensors" for number in range(0, 2000, 200)}
    assert after - before == expected | {"server.2.safetensors"}
    assert len(after) == 2001  # those that were replaced are gone
    assert sum((directory.path / "states" / name).stat().st_size for name in expected) < 10 * 700
    assert (directory.path / "states.jsonl").stat().st_size - index < 10 * 200
    directory.close()


KEYS = ["a", "b", "c", "d/ü"]
VALUES = st.one_of(
    st.integers(0, 40).map(lambda size: {"x": torch.arange(size)}),
    st.dictionaries(
        st.sampled_from("xy"), st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=2
    ),
)
STEPS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(KEYS), VALUES),
    st.tuples(st.sampled_from(["get", "delete"]), st.sampled_from(KEYS)),
    st.tuples(st.sampled_from(["commit", "go back", "kill", "half a commit, then kill"])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30), st.sampled_from([0, 500, 2**20]))
def test_it_is_a_dictionary_that_goes_back_to_its_last_commit(steps: list[Any], cache_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        directory = RunDirectory(Path(folder) / "run", new=True)
        shelf = Shelf(directory.scratch / "shelf", cache_bytes)
        model: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        committed(directory, shelf, 0)
        for number, (what, *words) in enumerate(steps, start=1):
            if what == "set":
                shelf[words[0]] = model[words[0]] = words[1]
            elif what == "get":
                assert same(shelf.get(words[0]), model.get(words[0]))
            elif what == "delete":
                assert same(shelf.pop(words[0], None), model.pop(words[0], None))
            elif what == "commit":
                committed(directory, shelf, number)
                kept = dict(model)
            elif what == "go back":
                directory.rewind()
                shelf.restore(directory.shelf_files())
                model = dict(kept)
            else:
                if what != "kill":
                    shelf.save(directory.path / "states", str(number))
                directory.close()
                directory, shelf = reopened(directory.path)
                model = dict(kept)
            assert list(shelf) == list(model)
            assert len(shelf) == len(model)
        assert same(dict(shelf), model)
        directory.close()
        directory, shelf = reopened(directory.path)
        assert same(dict(shelf), kept)
        files = {path.name for path in (directory.path / "states").iterdir()}
        assert len(files) == len(kept) + 1
        directory.close()


# -- in a run -------------------------------------------------------------------------------------------------


class Caching(Method):
    """The server keeps the last model of every client, and lets go of one that it has used twice."""

    name = "caching"

    def declare(self) -> Declaration:
        return Declaration(sends={"weights": Kind.WEIGHTS})

    @client_step
    def train(self, me: Client, weights: Mapping[str, torch.Tensor] | None = None) -> Fields:
        if weights is not None:
            learn.load_weights(me.model, weights)
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        return {"weights": learn.weights_of(me.model)}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        server.shelf.pop(f"last of round {t - 2}", None)
        for reply in fleet.stream(
            self.train,
            fleet.sample(),
            each=lambda who: {"weights": server.shelf.get(who.name, {}).get("weights")},
        ):
            used = server.shelf[reply.client.name]["used"] + 1 if reply.client.name in server.shelf else 0
            server.shelf[reply.client.name] = {"weights": reply["weights"], "used": used}
            if used == 2:
                del server.shelf[reply.client.name]
        server.shelf[f"last of round {t}"] = {"clients": list(server.shelf)}


def test_a_method_with_a_shelf_keeps_the_contract() -> None:
    check_method(Caching)


def test_a_result_covers_the_slots_and_their_order(make_run: MakeRun) -> None:
    run = make_run(Caching, cohort={"count": 2}, rounds=3)
    run.go()
    run.close()
    result = result_of(run.path)
    assert result["shelf"] == [OWNER + key for key in run.server.shelf]
    assert result["shelf"][-2:] == [OWNER + "last of round 2", OWNER + "last of round 3"]
    assert set(result["shelf"]) < set(result["states"])
    assert [path for path in (run.path / "states").iterdir() if "slot" in path.name]


def test_a_shelf_without_memory_gives_the_same_result(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy, tight = make_run(Caching), make_run(Caching)
    roomy.go()
    reset = tight._reset

    def reset_tightly() -> None:
        reset()
        tight.server.shelf.cache_bytes = 0

    monkeypatch.setattr(tight, "_reset", reset_tightly)
    tight._reset()
    tight.go()
    assert result_of(roomy.path) == result_of(tight.path)


class MortalSettings(MethodSettings):
    flag: str


class Mortal(Caching):
    """Its worker dies once, in the middle of the third round."""

    name = "mortal"
    Settings = MortalSettings
    settings: MortalSettings

    @client_step
    def train(self, me: Client, weights: Mapping[str, torch.Tensor] | None = None) -> Fields:
        flag = Path(self.settings.flag)
        if me.moment.round == 3 and me.facts.index == 3 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return dict(super().train(me, weights))


def test_a_lost_worker_takes_the_shelf_back_to_the_last_checkpoint(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "died before").touch()
    whole, wounded = (
        make_run(Mortal, Pool(2), settings={"flag": str(tmp_path / flag)}, rounds=4)
        for flag in ("died before", "dies now")
    )
    whole.go()
    wounded.go()
    assert (tmp_path / "dies now").exists()
    assert result_of(whole.path) == result_of(wounded.path)


def test_a_run_killed_in_the_middle_has_the_undisturbed_runs_slots(make_run: MakeRun) -> None:
    undisturbed = make_run(Caching, rounds=4)
    undisturbed.go()
    killed = make_run(Caching, rounds=4, checkpoint_seconds=0)

    def until_killed() -> None:
        torch.set_num_threads(1)
        write = Shelf.__setitem__

        def write_or_die(shelf: Shelf, key: str, value: Fields) -> None:
            write(shelf, key, value)
            if killed.round == 2 and len(shelf._deleted) == 2:  # in the third round, some deleted
                os.kill(os.getpid(), signal.SIGKILL)

        Shelf.__setitem__ = write_or_die  # type: ignore[method-assign]
        killed.go()

    process = multiprocessing.get_context("fork").Process(target=until_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    killed.directory.close()
    resumed = Run(killed.federation, Inline(), RunDirectory(killed.path, new=False))
    resumed.go()
    assert result_of(resumed.path) == result_of(undisturbed.path)
    assert same(dict(resumed.server.shelf), dict(undisturbed.server.shelf))
    resumed.close()
