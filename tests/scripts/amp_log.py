"""scripts/amp-log: the numbers of a real log arrive in the CSV, and in TensorBoard's own reader.

usage: amp_log.py ROOT DARKNET

Without the package tensorboard that half is left out, and said.
"""

import csv
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "tests"))
import toyset

EVENTS = "events.out.tfevents.amp-log"
COLUMNS = ["epoch", "loss", "learning_rate", "loss_scale", "redone", "skipped", "seconds", "images_per_second",
           "loading_seconds", "grad_norm", "clipped", "gradient_noise_scale", "host_memory_bytes"]
EVALUATED = ["map50", "map75", "map", "ap50/red", "ap50/blue"]


def convert(folder, *args):
    return subprocess.run([sys.executable, ROOT / "scripts/amp-log", *args], cwd=folder, capture_output=True,
                          text=True)


def lines(folder):
    """The log's last word on each iteration."""
    rows = {}
    for told in map(json.loads, (folder / "log").read_text().splitlines()):
        if "summary" in told:
            continue
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
        import tensorboard  # noqa: F401
    except ImportError:
        refused = convert(folder, "log", "--tensorboard", "board")
        assert refused.returncode == 1 and "pip install tensorboard" in refused.stderr, refused
        print("SKIPPED TensorBoard's event files: its package is not installed")
        return
    done = convert(folder, "log", "--tensorboard", "board")
    assert done.returncode == 0, done.stderr
    check_curves(folder, "board", rows)
    # The same name again: nothing new, nothing twice; then a run that goes on from iteration 4, which tells of it
    # and what follows again; then one whose file was cut by a kill.
    before = (folder / "board" / EVENTS).read_bytes()
    assert convert(folder, "log", "--tensorboard", "board").returncode == 0
    assert (folder / "board" / EVENTS).read_bytes() == before
    first = (folder / "log").read_text()
    again = {i: row for i, row in rows.items() if i < 4}
    again.update({i: {"loss": i / 8, "seconds": 1} for i in (4, 5)})
    with open(folder / "log", "a") as log:
        for i in (4, 5):
            print(json.dumps({"iteration": i, **again[i]}), file=log)
    with open(folder / "board" / EVENTS, "ab") as events:
        events.write(b"killed in the middle")
    assert convert(folder, "log", "--tensorboard", "board").returncode == 0
    check_curves(folder, "board", again)
    # A new run empties the log.
    new = {i: {"loss": i / 16, "seconds": 2} for i in range(1, 4)}
    (folder / "log").write_text("".join(json.dumps({"iteration": i, **row}) + "\n" for i, row in new.items()))
    done = convert(folder, "log", "--tensorboard", "board")
    assert done.returncode == 0 and "is of another run" in done.stderr, done
    check_curves(folder, "board", new)
    check_follow(folder, rows, first)
    (folder / "strange").mkdir()
    (folder / "strange" / "events.out.tfevents.1").write_bytes(b"")
    refused = convert(folder, "log", "--tensorboard", "strange")
    assert refused.returncode == 1 and "has an event file already" in refused.stderr, refused
    (folder / "log").write_text(first)


def check_curves(folder, board, rows):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(folder / board), size_guidance={"scalars": 0})
    events.Reload()
    for name in (*COLUMNS, *EVALUATED):
        expected = {i: row[name] for i, row in rows.items() if row.get(name) is not None}
        read = events.Scalars(name) if name in events.Tags()["scalars"] else []
        assert [event.step for event in read] == list(expected), (name, read, expected)
        for event in read:  # it stores FP32
            assert abs(event.value - expected[event.step]) <= 1e-6 * abs(event.value), (name, event)


def check_follow(folder, rows, text):
    """The log grows, half a line at a time, while it is followed."""
    process = subprocess.Popen([sys.executable, ROOT / "scripts/amp-log", "grows", "--tensorboard", "followed", "--follow"],
                               cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        for begin in range(0, len(text), 1500):
            with open(folder / "grows", "a") as log:
                log.write(text[begin:begin + 1500])
            time.sleep(.4)
        state = folder / "followed" / "amp-log.json"
        for _ in range(600):
            if state.exists() and json.loads(state.read_text())["read"] == len(text.encode()):
                break
            assert process.poll() is None, process.communicate()
            time.sleep(.1)
        check_curves(folder, "followed", rows)
        second = convert(folder, "log", "--tensorboard", "followed")
        assert second.returncode == 1 and "another amp-log writes there" in second.stderr, second
    finally:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and not said, (process.returncode, said)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = toyset.make(Path(name) / "toy", max_batches=6, net_keys="mixed_precision=1\nseed=1\namp_log=log\n"
                             "amp_log_layers=2\nclip_grad_norm=1\namp_log_noise=1")
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
                           (("none", "--csv", "x"), "none"), (("log",), "nothing to write"),
                           (("log", "--follow"), "nothing to write"),
                           (("log", "--follow", "--csv", "x", "--tensorboard", "y"), "--follow goes with")):
            refused = convert(folder, *args)
            assert refused.returncode != 0 and said in refused.stderr, refused
        assert not (folder / "x").exists()


main()
