"""scripts/compare with a classifier's cfg: top 1 and top 5 of every run are those of `classifier valid`, also drawing by
drawing; the page says them.

usage: compare_classifier.py ROOT DARKNET
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import browser
import classset

ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="2")


def compare(folder, *words, status=0):
    command = [sys.executable, "-B", ROOT / "scripts/compare", "--darknet", DARKNET, "c.data", "net.cfg", "--out", "out",
               "--seeds", "1", *words]
    done = subprocess.run(list(map(str, command)), cwd=folder, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout[-3000:]
    return done.stdout


def right_of(run):
    """(top 1, top 5) that Darknet's own command prints of a run's weights, at the end and after each image."""
    said = subprocess.run([DARKNET, "classifier", "valid", "set.data", "net.cfg", "net_final.weights"], cwd=run,
                          capture_output=True, text=True, check=True).stdout
    return [tuple(map(float, found)) for found in re.findall(r"^\d+: top 1: ([\d.]+), top 5: ([\d.]+)$", said, re.M)]


def check_run(run):
    measured, shares = json.loads((run / "map.json").read_text()), right_of(run)
    assert len(shares) == measured["settings"]["images"] == classset.VALID
    for i, name in enumerate(("top1", "top5")):
        assert abs(measured[name] - shares[-1][i]) < 1e-6, (measured[name], shares[-1])
        drawn = measured["bootstrap"][name]
        # The spread of a share of n images: its mean lies within a few of these over the root of the drawings.
        spread = (measured[name] * (1 - measured[name]) / classset.VALID) ** .5
        assert abs(sum(drawn) / len(drawn) - measured[name]) <= 5 * spread / len(drawn) ** .5 + 1e-9, (name, spread)
    return measured


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "set"
        classset.make(folder)
        text = (ROOT / "cfg/mixed-classifier.cfg").read_text().replace("batch=128", "batch=16")
        (folder / "net.cfg").write_text(text.replace("max_batches=1000", "max_batches=60"))
        assert "--metric map50: of a classifier allowed are top1, top5" in compare(folder, "--metric", "map50", status=1)
        said = compare(folder, "--map-every", "20")
        runs = {name: check_run(folder / "out/runs" / name) for name in ("fp32-1", "mixed-1")}
        text = (folder / "out/report.html").read_text()
        found = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
        difference = runs["mixed-1"]["top1"] - runs["fp32-1"]["top1"]
        assert found["variants"][1]["difference"]["top1"]["differences"] == [difference], found["variants"]
        notes = [note for note in found["notes"] if "busy with other things" not in note]
        assert found["metric"] == "top 1" and found["detection"] == [] and notes == [], notes
        for run in found["runs"]:
            curve = run["curves"]["map"]
            assert [point[0] for point in curve] == [20, 40, 60], run["curves"]
            assert abs(curve[-1][1] - runs[run["name"]]["top1"]) < 1e-6, (curve, run["name"])
        assert "No verdict on top 1 with mixed precision: one seed" in said and "| top 5 |" in said, said
        assert "seed 1" not in compare(folder, "--map-every", "20").split("\n\n")[0], "a finished run was repeated"
        shown = browser.drawn(folder / "out/report.html", folder / "browser")
        assert shown is None or "top 1 during training" in shown


main()
