#!/usr/bin/python3
"""The part of scripts/demo.sh after the build: train in FP32 and in mixed precision, compare.

    scripts/demo.py [--darknet PROGRAM] [--data DIR]

Both runs use the same cfg, images and seed. The FP32 run is Darknet's own path: its cfg has
the key `seed` and nothing else of the plugin's. What is made in out/demo:
    data/           the demo's pictures (not with --data)
    lists/          train.txt and valid.txt with absolute paths, set.names
    fp32/  mixed/   net.cfg, set.data, train.log, the weights, map.json of each run
    summary.json    {"fp32": {"map50": ..}, "mixed": {"map50": ..}}; map50 and map in 0..1,
                    device ("CPU" or the GPU's name), seconds_per_iteration (median),
                    peak_memory_mb (MiB of the host's), device_memory_mb (the same of the GPU's,
                    as nvidia-smi tells every 10 s; null on the CPU and where it does not tell),
                    seconds (of the whole training); mixed also redone and skipped (loss-scaling
                    counts)
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench_lib import DARKNET_ITERATION, BenchError, exits
from training import (NO_GPU, DeviceMemory, clock, data_file, fail_with_log, find_set, gpu_of,
                      read_lines, read_set, run_darknet, write_lists)

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "out/demo"
SEED = 1
RUNS = {
    "fp32": [f"seed={SEED}"],
    "mixed": ["mixed_precision=1", f"seed={SEED}", "amp_log=iterations.jsonl"],
}
PLUGIN_LINE = "mixed precision:"  # how the plugin's messages begin


# ---- the cfg ----


def adapt_cfg(program, cfg, classes):
    """cfg/demo.cfg for another data set: its class count and its own anchors."""
    total = re.search(r"(?m)^num=(\d+)", cfg)[1]
    per_head = len(re.search(r"(?m)^mask=(.*)", cfg)[1].split(","))
    cfg = re.sub(r"(?m)^classes=.*", f"classes={classes}", cfg)
    last_before_head = r"(?m)^filters=.*(?=[^\[]*\[yolo\])"
    cfg = re.sub(last_before_head, f"filters={per_head * (classes + 5)}", cfg)
    folder = prepare_run("fp32", cfg, classes)
    run_darknet(program, ["amp", "data", "set.data", "net.cfg", "--anchors", total, "--json",
                          "data.json"], folder, "data.log")
    anchors = json.loads((folder / "data.json").read_text())["anchors"]["values"]
    return re.sub(r"(?m)^anchors=.*", "anchors=" + ",  ".join(f"{w:.0f},{h:.0f}" for w, h in anchors),
                  cfg)


# ---- training ----


def prepare_run(name, cfg, classes):
    """A fresh folder for one run with its cfg and data file. amp_log in the cfg is relative, because
    Darknet drops blanks from cfgs."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = "".join(f"{key}\n" for key in RUNS[name])
    (folder / "net.cfg").write_text(cfg.replace("[net]\n", "[net]\n" + keys, 1))
    (folder / "set.data").write_text(data_file(classes, "../lists"))
    return folder


class Progress:
    """What is shown of Darknet's output: a line every few seconds, the plugin's messages."""

    def __init__(self, total, own_line):
        self.total, self.own_line = total, own_line
        self.seconds = []
        self.device_memory = DeviceMemory()
        self.on_cpu = False  # a GPU build, but not on a GPU
        self.start = time.monotonic()
        self.shown = self.start - 5

    def take(self, line, process):
        if line.startswith(PLUGIN_LINE):
            print(f"  {line}", end="", flush=True)
        self.on_cpu = self.on_cpu or line.startswith(NO_GPU)
        match = DARKNET_ITERATION.match(line)
        if not match:
            return
        iteration, average, seconds, images = (
            float(match[key]) for key in ("iteration", "average", "seconds", "images"))
        self.device_memory.look(process)
        self.seconds.append(seconds)
        now = time.monotonic()
        due = now - self.shown >= 10 or iteration == self.total
        if self.own_line and due:
            self.shown = now
            passed = now - self.start
            left = passed / iteration * (self.total - iteration)
            print(f"  {iteration:.0f}/{self.total} ({100 * iteration / self.total:.0f} %), "
                  f"{images / passed:.1f} images/s, average loss {average:.3g}, "
                  f"{clock(left)} left", flush=True)


def train(name, program, gpu, folder, iterations):
    """Train; the figures of one column of the table, without the mAPs. gpu: what the program would run
    on, None: the CPU."""
    progress = Progress(iterations, own_line=name == "fp32")
    memory = run_darknet(program, ["detector", "train", "set.data", "net.cfg"], folder, "train.log",
                         progress.take)
    # Darknet leaves with status 0 when it cannot open a file.
    if len(progress.seconds) < iterations or not (folder / "net_final.weights").exists():
        fail_with_log(folder / "train.log",
                      f"training stopped after {len(progress.seconds)} of {iterations} iterations")
    on_gpu = gpu and not progress.on_cpu
    result = {"device": gpu if on_gpu else "CPU",
              "seconds_per_iteration": statistics.median(progress.seconds),
              "peak_memory_mb": round(memory, 1),
              "device_memory_mb": progress.device_memory.peak if on_gpu else None,
              "seconds": round(time.monotonic() - progress.start, 1)}
    if name == "mixed":
        log = map(json.loads, read_lines(folder / "iterations.jsonl"))
        last = [told for told in log if "redone" in told][-1]
        result.update(redone=last["redone"], skipped=last["skipped"])
    return result


def evaluate(program, folder):
    run_darknet(program, ["detector", "map", "set.data", "net.cfg", "net_final.weights",
                 "--json", "map.json"], folder, "map.log")
    measured = json.loads((folder / "map.json").read_text())
    return {"map50": measured["map50"], "map": measured["map"]}


def memory_text(run, key):
    return f"{run[key]:.0f} MB" if run[key] is not None else "unknown"


def memory_row(name, fp32, mixed, key):
    both = fp32[key] and mixed[key]
    return (name, memory_text(fp32, key), memory_text(mixed, key),
            f"{100 * mixed[key] / fp32[key]:.0f} %" if both else "")


def table_rows(fp32, mixed):
    faster = fp32["seconds_per_iteration"] / mixed["seconds_per_iteration"]
    on_gpu = fp32["device"] != "CPU"
    memory = [memory_row("peak memory, host" if on_gpu else "peak memory", fp32, mixed,
                         "peak_memory_mb")]
    if on_gpu:
        memory.append(memory_row("peak memory, GPU", fp32, mixed, "device_memory_mb"))
    return [
        ("mAP@0.5", f"{fp32['map50']:.3f}", f"{mixed['map50']:.3f}", ""),
        ("mAP@[.5:.95]", f"{fp32['map']:.3f}", f"{mixed['map']:.3f}", ""),
        ("seconds per iteration", f"{fp32['seconds_per_iteration']:.3f}",
         f"{mixed['seconds_per_iteration']:.3f}", f"{faster:.1f}x faster"),
        ("whole training", clock(fp32["seconds"]), clock(mixed["seconds"]), ""),
        *memory,
        ("redone / skipped", "", f"{mixed['redone']} / {mixed['skipped']}", ""),
    ]


def print_table(fp32, mixed):
    print(f"\nTrained on: {fp32['device']}")
    print(f"{'':24}{'FP32':>10}{'mixed':>12}")
    for name, left, right, note in table_rows(fp32, mixed):
        print(f"{name:24}{left:>10}{right:>12}   {note}".rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="DIR", help="your own set")
    parser.add_argument("--darknet", type=Path, default=ROOT / "build/bin/darknet", metavar="PROGRAM")
    args = parser.parse_args()
    if not args.darknet.exists():
        raise BenchError(f"{args.darknet} is missing: run scripts/demo.sh, which builds it")
    program = args.darknet.resolve()

    print("== Data set", flush=True)
    folder = args.data.resolve() if args.data else WORK / "data"
    if not args.data:
        made = subprocess.run([sys.executable, ROOT / "scripts/make-demo-data.py", "--out", folder])
        if made.returncode:
            sys.exit(made.returncode)
    found = read_set(find_set(folder), folder)
    write_lists(found, WORK / "lists")
    names, images = found["names"], found["train"]
    print(f"{len(names)} classes, {len(images)} training images, {len(found['valid'])} held back")
    cfg = (ROOT / "cfg/demo.cfg").read_text()
    if args.data:
        cfg = adapt_cfg(program, cfg, len(names))
    iterations = int(re.search(r"(?m)^max_batches=(\d+)", cfg)[1])

    gpu = gpu_of(program)
    print(f"Computing on {gpu or 'the CPU'}", flush=True)
    summary = {}
    for name, title in (("fp32", "FP32, stock Darknet"), ("mixed", "mixed_precision=1")):
        print(f"== Training: {title}", flush=True)
        run = prepare_run(name, cfg, len(names))
        summary[name] = train(name, program, gpu, run, iterations)
        print("  measuring mAP on the held-back images", flush=True)
        summary[name] = {**evaluate(program, run), **summary[name]}
    (WORK / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if summary["fp32"]["device"] != summary["mixed"]["device"]:
        raise BenchError(f"FP32 ran on {summary['fp32']['device']}, mixed precision on "
                         f"{summary['mixed']['device']}: not to be compared")
    print_table(summary["fp32"], summary["mixed"])
    print(f"\nWritten to {WORK / 'summary.json'}; logs and weights are beside it.")


if __name__ == "__main__":
    exits("demo", main)
