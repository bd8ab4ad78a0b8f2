"""Joins what the stages of scripts/gpu-check.sh left into OUT/<gpu>-<date>.json and .md, and what they
said into .log.

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


def read_json(path, is_right):
    """The file's object; None where a stage did not come so far. What is damaged is left out, and said:
    the rest of the report is worth having."""
    if not path.exists():
        return None
    try:
        found = bench_lib.read_json(path)
        if is_right(found):
            return found
        raise bench_lib.BenchError(f"{path}: not what its stage writes")
    except bench_lib.BenchError as error:
        print(f"gpu_report: {error}; left out", file=sys.stderr)
        return None


def is_bench(found):
    runs = found.get("runs", [])
    return isinstance(runs, list) and all(
        isinstance(run, dict) and (not run.get("device") or is_named(run["device"], "name"))
        for run in runs)


def is_named(found, key):
    return isinstance(found, dict) and isinstance(found.get(key), str)


def is_device(found):
    return is_named(found, "deviceName")


def is_slope(found):
    return all(isinstance(engines, dict) or isinstance(engines, list) and all(
        is_named(engine, "slope") or is_named(engine, "status") or engine == {}
        for engine in engines) for engines in found.values())


def read_stages(path):
    """The stages, a line each."""
    keys = ("name", "result", "seconds", "reason")
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise bench_lib.BenchError(f"{path}: cannot be read: {error}") from None
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != len(keys):
            raise bench_lib.BenchError(f"{path}:{number}: {len(row)} columns; must be {len(keys)}: "
                                       + ", ".join(keys))
    return [dict(zip(keys, row)) for row in rows]


def device_name(properties, bench):
    """From whichever stage learnt it."""
    for run in (bench or {}).get("runs", []):
        if run.get("device"):
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


def logs(work):
    """What the stages said, one after another."""
    paths = sorted(work.glob("*.log"), key=lambda path: path.stat().st_mtime)
    return "".join(f"==== {path.stem}\n{path.read_text(errors='replace')}\n" for path in paths)


def page(record, bench_page):
    lines = [f"# GPU check on {record['gpu']}, {record['date']}", "",
             f"Commit {record['machine']['commit']}; {record['machine']['cpu']}, "
             f"{bench_lib.cores(record['machine'])}.", ""]
    lines += bench_lib.table(["stage", "result", "seconds", "reason"],
                             [[stage[key] for key in ("name", "result", "seconds", "reason")]
                              for stage in record["stages"]])
    if record["leaky_slope"]:
        lines += ["", slope_line(record["leaky_slope"])]
    return bench_lib.page(lines) + ("\n" + bench_page if bench_page else "")


def main(work, out):
    bench, properties = read_json(work / "bench.json", is_bench), read_json(work / "device.json", is_device)
    date = datetime.date.today().isoformat()
    name = device_name(properties, bench)
    record = {"gpu": name, "date": date, "machine": bench_lib.machine(),
              "stages": read_stages(work / "stages"),
              "device_properties": properties,
              "leaky_slope": read_json(work / "leaky_slope.json", is_slope),
              "losses": read_json(work / "losses.json", bool), "bench": bench}
    bench_page = work / "bench.md"
    text = page(record, bench_page.read_text() if bench_page.exists() else "")
    short = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")
    base = out / f"{short}-{date}"
    bench_lib.write(f"{base}.json", json.dumps(record, indent=1) + "\n")
    bench_lib.write(f"{base}.md", text)
    bench_lib.write(f"{base}.log", logs(work))
    print(text)


if __name__ == "__main__":
    bench_lib.exits("gpu_report", lambda: main(Path(sys.argv[1]), Path(sys.argv[2])))
