"""What a run must not do to files: write weights that are not finite, or empty an older amp_log or a
file that is none.

usage: nothing_lost.py DARKNET
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def run(folder, *args):
    return subprocess.run([sys.argv[1], *args], cwd=folder, capture_output=True, text=True)


def lines(path):
    """Those of iterations."""
    return path.read_text().count('"loss": ')


def diverged_weights_are_not_saved(root):
    data = toyset.make(root / "diverged", max_batches=1, net_keys="mixed_precision=1\nseed=1")
    cfg = data / "toy.cfg"
    cfg.write_text(cfg.read_text().replace("learning_rate=0.001", "learning_rate=1e38")
                   .replace("burn_in=10", "burn_in=0"))
    final = data / "backup" / "toy_final.weights"
    final.write_bytes(b"good")
    result = run(data, "detector", "train", "toy.data", "toy.cfg")
    assert result.returncode == 1 and "no longer finite" in result.stderr, result.stderr
    assert final.read_bytes() == b"good"


def log_outlives_later_commands(root):
    log = root / "log.json"
    keys = "mixed_precision=1\nseed=1\namp_log=%s" % log
    data = toyset.make(root / "logged", max_batches=2, net_keys=keys)
    cfg, final = data / "toy.cfg", "backup/toy_final.weights"
    train = ["detector", "train", "toy.data", "toy.cfg"]
    assert run(data, *train).returncode == 0 and lines(log) == 2
    assert run(data, "detector", "map", "toy.data", "toy.cfg", final).returncode == 0
    assert lines(log) == 2, "emptied by a command that does not train"
    cfg.write_text(cfg.read_text().replace("max_batches=2", "max_batches=3"))
    assert run(data, *train, final).returncode == 0 and lines(log) == 3, "resuming appends"
    assert run(data, *train).returncode == 0 and lines(log) == 3, "a new run starts a new log"


def other_files_are_no_logs(root):
    """One of the run's own inputs named as amp_log; a pipe that nobody reads."""
    keys = "mixed_precision=1\nseed=1\namp_log=%s"
    for name, reason in (("toy.cfg", "is no log"), ("toy.data", "is no log"),
                         ("train.txt", "is no log"), ("image000.png", "is no log"),
                         ("pipe", "a pipe that nobody reads"), ("backup", "Is a directory")):
        data = toyset.make(root / ("log_" + name.replace(".", "_")), max_batches=2, net_keys=keys % name)
        os.mkfifo(data / "pipe")
        before = [path.read_bytes() for path in sorted(data.iterdir()) if path.is_file()]
        result = run(data, "detector", "train", "toy.data", "toy.cfg")
        assert result.returncode == 1, (name, result.stderr)
        assert "toy.cfg:16: amp_log=%s: cannot be written: " % name in result.stderr, result.stderr
        assert reason in result.stderr, result.stderr
        after = [path.read_bytes() for path in sorted(data.iterdir()) if path.is_file()]
        assert before == after and not list((data / "backup").iterdir()), name


def a_log_may_be_the_output(root):
    data = toyset.make(root / "output", max_batches=2,
                       net_keys="mixed_precision=1\nseed=1\namp_log=/dev/stdout")
    train = [sys.argv[1], "detector", "train", "toy.data", "toy.cfg"]
    piped = run(data, *train[1:])
    assert piped.returncode == 0 and piped.stdout.count('{"iteration": ') == 3, piped.stderr
    with open(data / "out", "w") as out:
        out.write("what was there\n")
        out.flush()
        subprocess.run(train, cwd=data, stdout=out, stderr=subprocess.DEVNULL, check=True)
    text = (data / "out").read_text()
    assert text.startswith("what was there\n") and text.count('{"iteration": ') == 3, text
    assert text.count("Loaded: ") == piped.stdout.count("Loaded: ") == 2, text


def a_folder_in_the_place_of_weights_is_said(root):
    data = toyset.make(root / "folder", max_batches=2, net_keys="mixed_precision=1\nseed=1")
    (data / "backup" / "toy_final.weights").mkdir()
    result = run(data, "detector", "train", "toy.data", "toy.cfg")
    assert result.returncode == 1, result.stderr
    assert "weights are not saved" in result.stderr, result.stderr


with tempfile.TemporaryDirectory() as folder:
    a_folder_in_the_place_of_weights_is_said(Path(folder))
    diverged_weights_are_not_saved(Path(folder))
    log_outlives_later_commands(Path(folder))
    other_files_are_no_logs(Path(folder))
    a_log_may_be_the_output(Path(folder))
