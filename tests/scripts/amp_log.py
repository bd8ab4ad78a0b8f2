"""scripts/amp-log: the numbers of a real log arrive in the CSV, and in TensorBoard's own reader.

usage: amp_log.py ROOT DARKNET

Without the package tensorboard that half is left out, and said.
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "tests"))
import toyset

COLUMNS = ["loss", "loss_scale", "redone", "skipped", "seconds", "loading_seconds", "grad_norm", "clipped"]
EVALUATED = ["map50", "map75", "map", "ap50/red", "ap50/blue"]


def convert(folder, *args):
    return subprocess.run([sys.executable, ROOT / "scripts/amp-log", *args], cwd=folder, capture_output=True,
                          text=True)


def lines(folder):
    """The log's last word on each iteration."""
    rows = {}
    for told in map(json.loads, (folder / "log").read_text().splitlines()):
        told.get("evaluation", {}).pop("seconds", None)  # an iteration has its own
        for row in told.get("evaluation", {}).pop("classes", []):
            told["evaluation"][f"ap50/{row['name']}"] = row["ap50"]
        rows.setdefault(told["iteration"], {}).update(told.get("evaluation", told))
    return rows


def check_csv(folder, rows):
    assert convert(folder, "log", "--csv", "log.csv").returncode == 0
    with open(folder / "log.csv", newline="") as f:
        table = list(csv.DictReader(f))
    assert list(table[0]) == ["iteration", *COLUMNS, *EVALUATED], table[0]
    assert [int(row["iteration"]) for row in table] == sorted(rows)
    for row in table:
        for name in (*COLUMNS, "map50", "ap50/red"):
            expected = rows[int(row["iteration"])].get(name)
            assert row[name] == "" if expected is None else float(row[name]) == expected, (name, row)


def check_tensorboard(folder, rows):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        refused = convert(folder, "log", "--tensorboard", "board")
        assert refused.returncode == 1 and "pip install tensorboard" in refused.stderr, refused
        print("SKIPPED TensorBoard's event files: its package is not installed")
        return
    done = convert(folder, "log", "--tensorboard", "board")
    assert done.returncode == 0, done.stderr
    board = EventAccumulator(str(folder / "board"), size_guidance={"scalars": 0})
    board.Reload()
    for name in (*COLUMNS, "map50", "ap50/red"):
        read = {event.step: event.value for event in board.Scalars(name)}
        assert set(read) == {i for i, row in rows.items() if row.get(name) is not None}, (name, read)
        for i, value in read.items():
            assert abs(value - rows[i][name]) <= 1e-6 * abs(value), (name, i, value)  # it stores FP32
    again = convert(folder, "log", "--tensorboard", "board")
    assert again.returncode == 1 and "has an event file already" in again.stderr, again


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = toyset.make(Path(name) / "toy", max_batches=6, net_keys="mixed_precision=1\nseed=1\namp_log=log\n"
                             "amp_log_layers=2\nclip_grad_norm=1")
        subprocess.run([DARKNET, "detector", "train", "toy.data", "toy.cfg", "-map", "-map_every", "3"], cwd=folder,
                       capture_output=True, check=True)
        rows = lines(folder)
        assert len(rows) == 6
        check_csv(folder, rows)
        check_tensorboard(folder, rows)
        # A run that goes on from iteration 4 tells of it and what follows again.
        with open(folder / "log", "a") as log:
            for i in (4, 5):
                print(json.dumps({"iteration": i, "loss": i / 8}), file=log)
        assert convert(folder, "log", "--csv", "two.csv").returncode == 0
        with open(folder / "two.csv", newline="") as f:
            table = list(csv.DictReader(f))
        assert [row["iteration"] for row in table] == ["1", "2", "3", "4", "5"]
        assert table[3]["loss"] == "0.5" and "map50" not in table[3]  # iteration 6 had it
        (folder / "other").write_text("a line\n")
        (folder / "part").write_text('{"iteration": 1, "evaluation": 1}\n')
        for args, said in ((("other", "--csv", "x"), "other:1: no line of an amp_log"),
                           (("part", "--csv", "x"), "part:1: no line of an amp_log"),
                           (("none", "--csv", "x"), "none"), (("log",), "nothing to write")):
            refused = convert(folder, *args)
            assert refused.returncode != 0 and said in refused.stderr, refused
        assert not (folder / "x").exists()


main()
