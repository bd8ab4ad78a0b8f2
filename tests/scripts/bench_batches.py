"""scripts/bench-batches: every point is measured, the picture has the record's numbers.

usage: bench_batches.py ROOT BENCH_STEP
"""

import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT, BENCH_STEP = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "tests"))
import toyset

WAYS = ("FP32", "pure FP16", "mixed precision")


def run(*args):
    return subprocess.run([ROOT / "scripts/bench-batches", *args], capture_output=True, text=True)


def check(folder):
    cfg = toyset.make(folder / "toy", size=128, net_keys="mixed_precision=1\nloss_scale=8\namp_log=log") / "toy.cfg"
    done = run(cfg, "--batches", "4,1", "--rounds", "1", "--out", folder / "made/bench", "--program", BENCH_STEP)
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "made/bench.json").read_text())
    assert record["batches"] == [1, 4] and record["cfg"] == "toy.cfg"
    points = {(p["way"], p["batch"]): p for p in record["points"]}
    assert set(points) == {(way, batch) for way in WAYS for batch in (1, 4)}, points
    for p in points.values():
        assert p["seconds"] > 0 and p["memory_bytes"] > 10 << 20, p
    for way in WAYS:  # more images take more memory
        assert points[way, 4]["memory_bytes"] > points[way, 1]["memory_bytes"], way
    shown = [e.text for e in ET.parse(folder / "made/bench.svg").iter("{http://www.w3.org/2000/svg}title")]
    drawn = {}
    for text in shown:
        way, batch, value = re.fullmatch(r"(.*), batch (\d+): (\S+)", text).groups()
        drawn.setdefault((way, int(batch)), []).append(float(value))
    assert set(drawn) == set(points)
    for key, (milliseconds, mib) in drawn.items():
        p = points[key]
        assert abs(milliseconds / (1e3 * p["seconds"] / p["batch"]) - 1) < 1e-4, (key, milliseconds, p)
        assert abs(mib / (p["memory_bytes"] / 2 ** 20) - 1) < 1e-4, (key, mib, p)
    assert not list(folder.rglob("log"))


def main():
    with tempfile.TemporaryDirectory() as name:
        check(Path(name))
        for args, said in ((("none.cfg",), "none.cfg: there is no such file"), (("x", "--batches", "0"), "batches")):
            refused = run(*args)
            assert refused.returncode != 0 and said in refused.stderr, refused


main()
