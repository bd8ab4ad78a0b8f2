"""What scripts/gpu-check.sh has so far, as a record to commit and its page: OUT/gpu-check.json and .md, and the plans of
convolutions as OUT/plans.

usage: gpu_report.py RESULTS PLANS BINARIES OUT

RESULTS has `card`, what nvidia-smi says of it; stages-first and stages-second, a line for each verdict; and the
records of single stages: bench-*.json, losses-*.json, device.json. What is damaged is left out, and said.
"""

import datetime
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import bench_lib
import bench_report

STAGE = ("name", "result", "seconds", "words")  # columns


def read_json(path, is_right):
    """The file's object, or None: the rest of the report is worth having."""
    try:
        found = bench_lib.read_json(path)
        if is_right(found):
            return found
        raise bench_lib.BenchError(f"{path}: not what its stage writes")
    except bench_lib.BenchError as error:
        print(f"gpu_report: {error}; left out", file=sys.stderr)
        return None


def read_all(results, pattern, is_right):
    """{what of the name follows the hyphen: the object}"""
    found = {path.stem.partition("-")[2]: read_json(path, is_right) for path in sorted(results.glob(pattern))}
    return {name: value for name, value in found.items() if value}


def is_bench(found):
    """Whether there is a page of it."""
    try:
        return bool(bench_report.page(found))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        return False


def read_stages(path):
    """The verdicts, a line each."""
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    rows = [line.split("\t") for line in lines if line]
    for number, row in enumerate(rows, 1):
        if len(row) != len(STAGE):
            raise bench_lib.BenchError(f"{path}:{number}: {len(row)} columns; must be {len(STAGE)}: "
                                       + ", ".join(STAGE))
    return [dict(zip(STAGE, row)) for row in rows]


def page(record):
    host = record["machine"]
    lines = [f"# GPU check on {record['card']}, {record['date']}", "",
             f"Commit {host['commit']}; {host['cpu']}, {bench_lib.cores(host)}.", ""]
    lines += bench_lib.table(list(STAGE), [[stage[key].replace("|", "\\|") for key in STAGE]
                                           for stage in record["stages"]])
    return bench_lib.page(lines) + "".join("\n" + bench_report.page(bench) for bench in record["bench"].values())


# ---- the plan file ----

FIRST_LINE = "darknet-amp plans, version 2"  # as kernels/cuda/libs/plan_cache.c has it


def checksum(text):
    """As kernels/cuda/libs/plan_cache.c has it."""
    found = 0xcbf29ce484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001b3 % 2**64
    return f"{found:016x}"


def plans(path):
    """The plan file's text, and what programs tried when they ended, perhaps by a hang: on this machine the next
    program would keep that as faulted. On another one it would meet the hang again."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    tried = [slot.read_text(errors="replace") for slot in sorted(path.parent.glob(f"{path.name}.trying.*"))]
    hung = {slot.split("\t")[1] for slot in tried if slot.count("\t") == 2 and slot[:16] == checksum(slot[17:])}
    if hung:
        lines = [line for line in lines or [FIRST_LINE] if not hung.intersection(line.split("\t")[1:2])]
        lines += [f"{checksum(line)}\t{line}" for line in (f"{key}\tfaulted" for key in sorted(hung))]
    return "".join(f"{line}\n" for line in lines)


def main(results, kept, binaries, out):
    card = results / "card"
    record = {
        "card": (card.read_text(errors="replace").splitlines() if card.exists() else [""])[0].split(",")[0] or "a GPU",
        "date": datetime.date.today().isoformat(),
        "machine": bench_lib.machine(binaries),
        "stages": [stage for part in ("first", "second") for stage in read_stages(results / f"stages-{part}")],
        "device_properties": read_json(results / "device.json", bool) if (results / "device.json").exists() else None,
        "losses": read_all(results, "losses-*.json", bool),
        "bench": read_all(results, "bench-*.json", is_bench),
    }
    bench_lib.write(out / "gpu-check.json", bench_lib.dump(record))
    bench_lib.write(out / "gpu-check.md", page(record))
    text = plans(kept)
    if text:
        bench_lib.write(out / "plans", text)


if __name__ == "__main__":
    bench_lib.exits("gpu_report", lambda: main(*map(Path, sys.argv[1:5])))
