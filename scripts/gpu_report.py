"""Joins what the stages of scripts/gpu-check.sh left into OUT/<gpu>-<date>.json and .md, what they said
into .log, and the plans of convolutions (of $XDG_CACHE_HOME) into .plans.

usage: gpu_report.py WORK OUT

A record that is there from the same day, commit and machine is added to: stages, runs of bench-gpu of the
same contestants and plans of the same name are replaced, but not by a stage that was skipped. Beside another record it is
<gpu>-<date>-2, and so on.
"""

import datetime
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import bench_lib
import bench_report


STAGE = ("name", "result", "seconds", "reason")  # columns


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
    """Whether there is a page of it, of runs that can be told apart."""
    try:
        bench_report.page(found)
        return (all(not run["device"] or is_named(run["device"], "name") for run in found["runs"])
                and joined(found["runs"], [], run_key) == found["runs"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        return False


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
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError as error:
        raise bench_lib.BenchError(f"{path}: cannot be read: {error}") from None
    rows = [line.split("\t") for line in lines if line]
    for number, row in enumerate(rows, 1):
        if len(row) != len(STAGE):
            raise bench_lib.BenchError(f"{path}:{number}: {len(row)} columns; must be {len(STAGE)}: "
                                       + ", ".join(STAGE))
    return [dict(zip(STAGE, row)) for row in rows]


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


# ---- a record that is there already ----


def is_record(found):
    stages = found.get("stages")
    return (isinstance(stages, list) and all(isinstance(stage, dict) and set(stage) == set(STAGE)
                                             and all(map(is_text, stage.values())) for stage in stages)
            and (not found.get("leaky_slope") or is_slope(found["leaky_slope"]))
            and (not found.get("bench") or is_bench(found["bench"])))


def is_text(value):
    return isinstance(value, str)


def find_place(base, machine):
    """(base of the files, the record that is there and is added to)."""
    for number in itertools.count(1):
        place = f"{base}-{number}" if number > 1 else base
        if not Path(f"{place}.json").exists():
            return place, None
        old = read_json(Path(f"{place}.json"), is_record)
        if old and old.get("machine") == machine:
            return place, old


def joined(old, new, key):
    """The items of both lists; where they have the key in common, the new one's."""
    return list({**{key(item): item for item in old}, **{key(item): item for item in new}}.values())


def run_key(run):
    """Runs of other contestants are beside each other: ratios are of one run."""
    return run["model"], run["batch"], str(run.get("asked"))


def add_to(old, record):
    """The record with what only the old one has."""
    bench = record["bench"]
    if bench and old.get("bench"):
        compared = {model: errors for model, errors in bench["errors"].items()
                    if "all" not in errors or model not in old["bench"]["errors"]}
        bench = {**bench, "errors": {**old["bench"]["errors"], **compared},
                 "runs": joined(old["bench"]["runs"], bench["runs"], run_key)}
    known = {stage["name"] for stage in old["stages"]}
    stages = [stage for stage in record["stages"]
              if stage["result"] != "skipped" or stage["name"] not in known]
    return {**record, **old, **{key: value for key, value in record.items() if value},
            "stages": joined(old["stages"], stages, lambda stage: stage["name"]),
            "bench": bench or old.get("bench")}


# ---- files ----

FIRST_LINE = "darknet-amp plans, version 1"  # of a plan file
LOG = re.compile(r"^==== ([a-z-]+)\n", re.MULTILINE)


def logs(work, old):
    """What the stages said, one after another."""
    paths = sorted(work.glob("*.log"), key=lambda path: path.stat().st_mtime)
    said = LOG.split(old.read_text(errors="replace") if old.exists() else "")[1:]
    said = {**dict(zip(said[::2], said[1::2])),
            **{path.stem: f"{path.read_text(errors='replace')}\n" for path in paths}}
    return "".join(f"==== {name}\n{text}" for name, text in said.items())


def checksum(text):
    """As kernels/cuda/libs/plan_cache.c has it."""
    found = 0xcbf29ce484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001b3 % 2**64
    return f"{found:016x}"


def tried(kept):
    """{key: line} of what programs tried when they ended, perhaps by a hang, and no later program has taken up: as
    that would, it is kept as faulted. Else a hang in the last stage of a run would meet the next run again."""
    texts = [path.read_text(errors="replace") for path in sorted(kept.parent.glob(f"{kept.name}.trying.*"))]
    keys = [text.split("\t")[1] for text in texts if text.count("\t") == 2 and text[:16] == checksum(text[17:])]
    return {key: "\t".join([checksum(f"{key}\tfaulted"), key, "faulted"]) for key in keys}


def plans(kept, old):
    """The lines of both plan files, one for every key: a checksum, the key, and the plan."""
    lines = {}
    for path in (old, kept):
        for line in path.read_text(errors="replace").split("\n") if path.exists() else []:
            if line:
                lines["\t".join(line.split("\t")[1:2]) or line] = line
    hung = tried(kept)
    if hung and not lines:
        lines[FIRST_LINE] = FIRST_LINE
    return "".join(f"{line}\n" for line in {**lines, **hung}.values())


def page(record):
    lines = [f"# GPU check on {record['gpu']}, {record['date']}", "",
             f"Commit {record['machine']['commit']}; {record['machine']['cpu']}, "
             f"{bench_lib.cores(record['machine'])}.", ""]
    lines += bench_lib.table(["stage", "result", "seconds", "reason"],
                             [[stage[key] for key in STAGE] for stage in record["stages"]])
    if record["leaky_slope"]:
        lines += ["", slope_line(record["leaky_slope"])]
    return bench_lib.page(lines) + ("\n" + bench_report.page(record["bench"]) if record["bench"] else "")


def main(work, out):
    bench, properties = read_json(work / "bench.json", is_bench), read_json(work / "device.json", is_device)
    date = datetime.date.today().isoformat()
    name = device_name(properties, bench)
    record = {"gpu": name, "date": date, "machine": bench_lib.machine(os.environ.get("AMP_BINARIES")),
              "stages": read_stages(work / "stages"),
              "device_properties": properties,
              "leaky_slope": read_json(work / "leaky_slope.json", is_slope),
              "losses": read_json(work / "losses.json", bool), "bench": bench}
    short = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")
    base, old = find_place(out / f"{short}-{date}", record["machine"])
    if old:
        record = add_to(old, record)
    text = page(record)
    bench_lib.write(f"{base}.json", bench_lib.dump(record))
    bench_lib.write(f"{base}.md", text)
    bench_lib.write(f"{base}.log", logs(work, Path(f"{base}.log")))
    kept = plans(Path(os.environ.get("XDG_CACHE_HOME", "")) / "darknet-amp/plans", Path(f"{base}.plans"))
    if kept:
        bench_lib.write(f"{base}.plans", kept)
    print(text)


if __name__ == "__main__":
    bench_lib.exits("gpu_report", lambda: main(Path(sys.argv[1]), Path(sys.argv[2])))
