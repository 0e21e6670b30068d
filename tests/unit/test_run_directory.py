"""The run directory: names, small files written whole, and refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small_disk import fill, small_disk

from drumline.errors import RunDirectoryError
from drumline.run_directory import RunDirectory, find_runs, write_atomically


def test_create_makes_the_folders_and_leaves_no_probe(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a" / "b")
    assert [path.name for path in run.path.iterdir()] == ["logs"]
    RunDirectory.create(run.path)  # again, for the next attempt
    assert run.rank_log(3) == run.path / "logs" / "rank-3.log"


def test_a_file_in_its_place_is_refused_with_path_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(RunDirectoryError) as raised:
        RunDirectory.create(tmp_path / "taken" / "run")
    assert str(tmp_path / "taken" / "run") in raised.value.message
    assert "run_dir=" in raised.value.remedy
    assert raised.value.exit_code == 2


def test_a_full_disk_is_refused_and_no_probe_is_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk)
        with pytest.raises(RunDirectoryError, match="No space left"):
            RunDirectory.create(disk / "run")
        assert not list((disk / "run").glob(".probe*"))


def test_open_wants_a_config(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no config\.yaml"):
        RunDirectory.open(tmp_path)
    RunDirectory(tmp_path).write_config({"seed": 1})
    assert RunDirectory.open(tmp_path).path == tmp_path
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"seed": 1}


def test_a_config_that_finds_no_room_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        run = RunDirectory.create(disk / "run")
        run.write_config({"seed": 1})
        fill(disk)
        with pytest.raises(RunDirectoryError, match="No space left"):
            run.write_config({"name": "x" * 9000})
        assert yaml.safe_load(run.config_path.read_text()) == {"seed": 1}


def test_names_are_safe_for_a_file_system() -> None:
    assert re.fullmatch(r"a-b-c-\d{8}-\d{6}-[0-9a-f]{6}", RunDirectory.new_name("../a/b  c.."))
    assert RunDirectory.new_name("///").startswith("run-")
    assert len({RunDirectory.new_name("x") for _ in range(20)}) > 1


def test_json_files_are_json_also_with_a_nan(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.result_path, {"loss": float("nan"), "path": tmp_path})

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    read = json.loads(run.result_path.read_text(), parse_constant=refuse)
    assert read == {"loss": "nan", "path": str(tmp_path)}
    assert run.result() == read


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_damaged_result_is_no_result(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.result_path.write_text(text)
    assert run.result() is None
    assert run.plan() is None  # absent


def test_a_small_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        path = disk / "result.json"
        write_atomically(path, "old")
        fill(disk)
        with pytest.raises(OSError):
            write_atomically(path, "new" * 10_000)
        assert path.read_text() == "old"
        assert sorted(found.name for found in disk.iterdir()) == ["filler", "result.json"]


def test_find_runs_gives_the_newest_first_and_nothing_else(tmp_path: Path) -> None:
    for number, name in enumerate(["old", "new"]):
        run = RunDirectory.create(tmp_path / name)
        run.write_config({})
        os.utime(run.config_path, (1000 + number, 1000 + number))
    (tmp_path / "no-run").mkdir()
    assert [run.path.name for run in find_runs(tmp_path)] == ["new", "old"]
    assert find_runs(tmp_path / "absent") == []


def test_a_directory_is_held_by_one_process_and_let_go_when_that_is_killed(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    program = (
        "import sys, time; from pathlib import Path; from drumline.run_directory import *\n"
        "with RunDirectory(Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, run.path], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(RunDirectoryError, match=f"in use by process {other.pid}"), run.held():
        raise AssertionError("two hold it")
    other.kill()
    other.wait()
    with run.held():
        pass
