"""Joins what the stages of scripts/gpu-check.sh left into OUT/<gpu>-<date>.json and .md.

usage: gpu_report.py WORK OUT
"""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import bench_lib


def read_json(path):
    """The file's JSON; None where a stage did not come so far."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_stages(text):
    keys = ("name", "result", "seconds", "reason")
    return [dict(zip(keys, line.split("\t"))) for line in text.splitlines()]


def device_name(properties, bench):
    """From whichever stage learnt it."""
    for run in (bench or {}).get("runs", []):
        if run["device"]:
            return run["device"]["name"]
    if properties:
        return properties["deviceName"]
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                                capture_output=True, text=True).stdout
    except OSError:
        listed = ""
    return listed.strip().splitlines()[0] if listed.strip() else "gpu"


def slope_line(found):
    """What leaky_slope found, in words."""
    words = []
    for way, engines in found.items():
        if isinstance(engines, dict):
            words.append(f"{way}: cuDNN refuses the graph")
            continue
        verdicts = sorted({engine.get("slope", engine.get("status", "?")) for engine in engines})
        words.append(f"{way}: " + (", ".join(verdicts) if engines else "no engine")
                     + f" ({len(engines)} plans)")
    return "Slope of a leaky ReLU in cuDNN's fused batch-norm engines: " + "; ".join(words) + "."


def page(record, bench_page):
    lines = [f"# GPU check on {record['gpu']}, {record['date']}", "",
             f"Commit {record['machine']['commit']}; {record['machine']['cpu']}, "
             f"{record['machine']['cores']} cores.", ""]
    lines += bench_lib.table(["stage", "result", "seconds", "reason"],
                             [[stage[key] for key in ("name", "result", "seconds", "reason")]
                              for stage in record["stages"]])
    if record["leaky_slope"]:
        lines += ["", slope_line(record["leaky_slope"])]
    return bench_lib.page(lines) + ("\n" + bench_page if bench_page else "")


def main(work, out):
    bench, properties = read_json(work / "bench.json"), read_json(work / "device.json")
    date = datetime.date.today().isoformat()
    name = device_name(properties, bench)
    record = {"gpu": name, "date": date, "machine": bench_lib.machine(),
              "stages": read_stages((work / "stages").read_text()),
              "device_properties": properties,
              "leaky_slope": read_json(work / "leaky_slope.json"),
              "losses": read_json(work / "losses.json"), "bench": bench}
    bench_page = work / "bench.md"
    text = page(record, bench_page.read_text() if bench_page.exists() else "")
    short = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")
    base = out / f"{short}-{date}"
    bench_lib.write(f"{base}.json", json.dumps(record, indent=1) + "\n")
    bench_lib.write(f"{base}.md", text)
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
