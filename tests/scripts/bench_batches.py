"""scripts/bench-batches: every point is measured, a batch that does not fit is marked and costs nothing else, the
picture has the numbers of all records.

usage: bench_batches.py ROOT BENCH_STEP DARKNET
"""

import json
import random
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT, BENCH_STEP, DARKNET = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path.insert(0, str(ROOT / "tests"))
import toyset

WAYS = ("FP32", "pure FP16", "mixed precision")
TITLE = "{http://www.w3.org/2000/svg}title"


def run(*args, program=BENCH_STEP):
    return subprocess.run([ROOT / "scripts/bench-batches", *args, "--program", program, "--darknet", DARKNET],
                          capture_output=True, text=True)


def make(folder):
    return toyset.make(folder / "toy", size=128, net_keys="mixed_precision=1\nloss_scale=8\namp_log=log") / "toy.cfg"


def drawn(path):
    """{(machine, way, batch): what its dots and crosses say}, from the top of the picture."""
    found = {}
    for element in ET.parse(path).iter(TITLE):
        machine, way, batch, value = re.fullmatch(r"(.*): (.*), batch (\d+): (.*)", element.text).groups()
        found.setdefault((machine, way, int(batch)), []).append(value)
    return found


def check(folder):
    cfg = make(folder)
    done = run(cfg, "--batches", "4,1", "--rounds", "1", "--out", folder / "made/bench", "--data", cfg.with_name("toy.data"),
               "--images", "40")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "made/bench.json").read_text())
    assert record["batches"] == [1, 4] and record["cfg"] == "toy.cfg" and record["images"] == 40
    assert record["device"] == record["machine"]["cpu"] + ", 2 threads"
    points = {(record["device"], p["way"], p["batch"]): p for p in record["points"]}
    assert {key[1:] for key in points} == {(way, batch) for way in WAYS for batch in (1, 4)}, points
    for p in points.values():
        assert p["seconds"] > 0 and p["memory_bytes"] > 10 << 20 and p["loss"] > 0, p
    for way in WAYS:  # more images take more memory
        few, many = (points[record["device"], way, batch] for batch in (1, 4))
        assert many["memory_bytes"] > few["memory_bytes"], way
    shown = drawn(folder / "made/bench.svg")
    assert set(shown) == set(points)
    for key, values in shown.items():
        p = points[key]
        expected = 1e3 * p["seconds"] / p["batch"], p["memory_bytes"] / 2 ** 20, p["loss"]
        assert len(values) == 3 and all(abs(float(v) / e - 1) < 1e-4 for v, e in zip(values, expected)), (key, values, p)
    text = (folder / "made/bench.svg").read_text()
    assert record["device"] in text and "loss after 40 images" in text
    assert not list(folder.rglob("log"))
    return folder / "made/bench.json"


CLASSIFIER = """[net]
batch=1
width=8
height=8
channels=3
learning_rate=0.01
policy=constant
max_batches=1

[convolutional]
batch_normalize=1
filters=2
size=3
activation=linear

[avgpool]
[softmax]
"""


def check_classifier(folder):
    """Right answers are counted where the running statistics have had time."""
    images = [folder / f"{i}_{('cat', 'dog')[i % 2]}.png" for i in range(10)]
    for image in images:
        toyset.write_image(image, random.Random(1), 8)
    (folder / "list.txt").write_text("".join(f"{image}\n" for image in images))
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "c.data").write_text(f"classes=2\ntrain={folder}/list.txt\nvalid={folder}/list.txt\n"
                                   f"labels={folder}/labels.txt\nbackup=nowhere\n")
    (folder / "c.cfg").write_text(CLASSIFIER)
    done = run(folder / "c.cfg", "--batches", "1,2", "--rounds", "1", "--data", folder / "c.data", "--images", "300",
               "--out", folder / "bench")
    assert done.returncode == 0, done.stderr
    for p in json.loads((folder / "bench.json").read_text())["points"]:
        assert p["loss"] > 0 and (0 <= p["top1"] <= 1 if p["batch"] == 1 else "top1" not in p), p
    assert "share of right answers after 300 images" in (folder / "bench.svg").read_text()
    assert all(len(values) == (4 if batch == 1 else 3) for (_, _, batch), values in drawn(folder / "bench.svg").items())


def check_what_does_not_fit(folder, other):
    """A program that has no memory for batch 2 in FP32; then for any. Another machine's record is drawn with it."""
    cfg = make(folder)
    stands_in = folder / "stands_in"

    def fails(condition):
        stands_in.write_text(f"""#!/bin/sh
grep -q '^batch=2' "$1" && echo "batch 2" >>{folder}/tried
{condition} && {{ echo "darknet-amp: out of memory for 9 GiB" >&2; exit 1; }}
exec {BENCH_STEP} "$@"
""")
        stands_in.chmod(0o755)

    record = json.loads(other.read_text())
    record["device"] = "NVIDIA <other>"
    other.write_text(json.dumps(record))
    fails("grep -q amp_level=O0 $1 && grep -q '^batch=2' $1")
    done = run(cfg, "--batches", "1,2,4", "--rounds", "2", "--out", folder / "bench", "--with", other, program=stands_in)
    assert done.returncode == 0, done.stderr
    assert "batch 2: FP32 failed: darknet-amp: out of memory for 9 GiB; pure FP16 0." in done.stdout, done.stdout
    assert len((folder / "tried").read_text().splitlines()) == 1 + 2 * 2  # FP32 once, the others in both rounds
    points = {(p["way"], p["batch"]): p for p in json.loads((folder / "bench.json").read_text())["points"]}
    assert points["FP32", 4]["failed"] == "not tried: batch 2 failed" and "failed" not in points["FP32", 1]
    assert [key for key, p in points.items() if "failed" in p] == [("FP32", 2), ("FP32", 4)], points
    shown = drawn(folder / "bench.svg")
    own = record["machine"]["cpu"] + ", 2 threads"
    assert {key[0] for key in shown} == {own, "NVIDIA <other>"}
    assert "out of memory for 9 GiB" in shown[own, "FP32", 2][0]
    fails("true")
    done = run(cfg, "--batches", "1", "--rounds", "1", "--out", folder / "bench", program=stands_in)
    assert done.returncode == 1 and "the first reason: darknet-amp: out of memory for 9 GiB" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "failing").mkdir()
        other = check(folder)
        (folder / "classifier").mkdir()
        check_classifier(folder / "classifier")
        check_what_does_not_fit(folder / "failing", other)
        (folder / "x").touch()
        for args, said in ((("none.cfg",), "none.cfg: there is no such file"), (("x", "--batches", "0"), "batches"),
                           (("x", "--images", "5"), "--data and --images go together"),
                           ((folder / "x", "--with", other), "bench.json: no record of x")):
            refused = run(*args)
            assert refused.returncode != 0 and said in refused.stderr, refused


main()
