"""The part of scripts/compare.sh after the build: pairs of trainings, and a report on them.

Written to OUT: report.html with everything, report.json (the record: settings, figures of every run,
verdicts, machine; no curves), report.md; runs.py says what else is there.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import report
import runs
import tasks
from bench_lib import OUT, ROOT, BenchError, dump, exits, machine, positive, write
from cfgs import standard_variants
from training import find_set, read_data_file, read_set

METRICS = (*tasks.Detector.metrics, *tasks.Classifier.metrics)


def margin(text):
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def not_negative(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def read_arguments():
    parser = argparse.ArgumentParser(prog="compare", add_help=False, usage=argparse.SUPPRESS)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("cfg", nargs="?", type=Path)
    parser.add_argument("weights", nargs="?", type=Path)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--stock-seeds", type=positive)
    parser.add_argument("--iterations", type=positive)
    parser.add_argument("--map-every", type=not_negative)
    parser.add_argument("--margin", type=margin, default=0.01)
    parser.add_argument("--metric", choices=METRICS)
    parser.add_argument("--samples", type=not_negative, default=3)
    parser.add_argument("--gpu", type=int)
    parser.add_argument("--out", type=Path, default=OUT / "compare")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--darknet", type=Path, default=ROOT / "build/bin/darknet")
    args = parser.parse_args()
    if not args.cfg:
        parser.error("DATA and CFG are needed")
    return args


def read_text(path, what):
    if not path.is_file():
        raise BenchError(f"{what} {path} is missing")
    return path.read_text(encoding="utf-8", errors="surrogateescape")  # bytes stay as they are


def read_cfg(args, program):
    """Its text, and what makes it a cfg of AlexeyAB's rules (None: nothing), by which stock Darknet cannot train."""
    text = read_text(args.cfg, "cfg")
    reason = runs.fork_reason(program, text)
    if reason and (args.stock or args.stock_seeds):
        raise BenchError(f"--stock: {args.cfg.name} is trained by AlexeyAB's rules ({reason}), which stock "
                         "Darknet does not have; leave it out")
    return text, reason


def read_inputs(args, program):
    """What every run is made from."""
    text, fork = read_cfg(args, program)
    task = tasks.task_of(text)
    labelled = task.command == "detector" and not fork
    args.metric = args.metric or next(iter(task.metrics))
    if args.metric not in task.metrics:
        raise BenchError(f"--metric {args.metric}: of a {task.command} allowed are {', '.join(task.metrics)}")
    data = args.data.resolve()
    if data.is_dir():
        found = read_set(find_set(data, task.names), data, labelled)
    else:
        base = Path.cwd()  # as in Darknet
        found = read_set(read_data_file(data, base, task.names), base, labelled)
    weights = args.weights.resolve() if args.weights else None
    if weights and not weights.is_file():
        raise BenchError(f"weights file {weights} is missing")
    return {"cfg": text, "task": task, "iterations": args.iterations, "set": found, "weights": weights}


def main():
    try:
        compare(read_arguments())
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else error
        raise BenchError(where) from None


def compare(args):
    if not args.darknet.exists():
        raise BenchError(f"{args.darknet} is missing: run scripts/compare.sh, which builds it")
    program = args.darknet.resolve()
    inputs = read_inputs(args, program)
    out = args.out.resolve()
    stock_seeds = args.stock_seeds or (1 if args.stock else 0)
    variants = standard_variants(args.variant, stock_seeds, args.control)
    planned = runs.plan_runs(out, variants, args.seeds, stock_seeds, inputs)
    host = {**machine(), "versions": report.versions()}
    out.mkdir(parents=True, exist_ok=True)
    held = runs.lock(out)
    every = max(1, planned[0].iterations // 10) if args.map_every is None else args.map_every
    options = runs.Options(args.gpu, every, inputs["task"])
    if not args.report_only:
        runs.train_all(out, planned, inputs["set"], program, host, options)
    found = report.make(planned, inputs, program, {
        "cfg": args.cfg.name, "data": args.data.name, "margin": args.margin, "metric": args.metric,
        "metrics": inputs["task"].metrics, "title": inputs["task"].title, "machine": host, "samples": args.samples if inputs["task"].command == "detector" else 0,
        "device": options.device})
    for name, text in (("report.json", dump(found["record"])),
                       ("report.md", found["markdown"]), ("report.html", found["html"])):
        write(out / name, text)
    print("\n" + found["markdown"])
    print(f"Written: {out / 'report.html'}, report.json and report.md beside it.")
    held.close()


exits("compare", main)
