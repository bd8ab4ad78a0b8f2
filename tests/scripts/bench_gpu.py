"""scripts/bench-gpu and bench_lib.py without a GPU: the pure functions, and a whole run against
stand-ins for the programs.

usage: bench_gpu.py ROOT CFGS
"""

import array
import importlib.machinery
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, CFGS = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "tests"))
import bench_lib
import bench_report
import toyset
from torch_python import python_with_torch

NETWORK = {"macs": 33e9, "first_macs": 0.15e9, "outputs": 30e6, "weights": 62e6}
H200 = {"name": "NVIDIA H200", "compute_capability": 90, "multiprocessors": 132,
        "clock_khz": 1980000, "memory_clock_khz": 3201000, "memory_bus_bits": 6144}

# What `detector train` of AlexeyAB's Darknet prints around an iteration, colours and all.
ALEXEYAB = """
 (next mAP calculation at 100 iterations) \x1b[0m
 1: 1512.327026, 1512.327026 avg loss, 0.000000 rate, 1.918273 seconds, 64 images, -1.000000 hours left
Loaded: 0.000051 seconds

 Tensor Cores are used.

 2: 1511.110107, 1512.205322 avg loss, 0.000000 rate, 1.071230 seconds, 128 images, 0.026680 hours left
Loaded: 0.510000 seconds - performance bottleneck on CPU or Disk HDD/SSD
 3: nan, nan avg loss, 0.000000 rate, 1.061230 seconds, 192 images, 0.026680 hours left
"""
DARKNET = """Loaded: 0.250000 seconds
Region 82 Avg IOU: 0.3, Class: 0.5, Obj: 0.5, No Obj: 0.5, .5R: 0.0, .75R: 0.0,  count: 3
1: 771.5, 771.5 avg, 0.000000 rate, 0.500000 seconds, 16 images
Loaded: 0.000100 seconds
2: 770.5, 771.4 avg, 0.000000 rate, 0.400000 seconds, 32 images
"""

STAND_IN = f"""#!{sys.executable}
import json, re, sys
assert "--gpu" in sys.argv, sys.argv
if "--dump" in sys.argv:
    assert re.search("(?m)^batch=16$", open(sys.argv[1]).read())
    sys.exit()
assert "--serve" in sys.argv, sys.argv
cfg = open(sys.argv[1]).read()
for line in ("timing", "timing") if "mixed_precision" in cfg else ():
    print("darknet-amp:", line, file=sys.stderr, flush=True)
if "amp_dtype=tf32" in cfg:
    sys.exit("this one is broken")
seconds = 0.010 if "mixed_precision=1" in cfg else 0.030
if sys.stdin.readline():
    print("noise of Darknet", flush=True)
    batch = int(re.search("(?m)^batch=(.*)", cfg)[1]) - ("amp_dtype=bf16" in cfg)
    print(json.dumps({{**{NETWORK!r}, "batch": batch, "memory_bytes": 3 << 30, "deferred_bytes": 2 << 30,
          "device": {{**{H200!r}, "driver": 13000, "runtime": 13000, "cudnn": 91900}}}}), flush=True)
for line in sys.stdin:
    print("noise", json.dumps({{}}))
    print(json.dumps({{"seconds": [seconds, seconds * float(line) * 10]}}), flush=True)
"""

# scripts/torch_net.py: with --graphs memory ends, and PyTorch says more after its error.
STAND_IN_TORCH = """
import json, pathlib, re, sys
if "--prepare" in sys.argv:
    sys.exit(pathlib.Path(sys.argv[2]).write_text(""))
if "--check" in sys.argv:
    right = {"heads": {"0": 0.001}, "weights": {"0": 0.01}}
    for folder in sys.argv[sys.argv.index("--check") + 1:]:
        assert pathlib.Path(folder).is_dir()
        print(json.dumps({**right, "fp32": right, "amp": right}))
    sys.exit()
sys.stdin.readline()
if "--graphs" in sys.argv:
    sys.exit("Traceback:\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.00 GiB.\\n\\nA hint")
print(json.dumps({"torch": "2.11", "batch": int(re.search("(?m)^batch=(.*)", open(sys.argv[1]).read())[1]),
      "memory_bytes": 2 << 30, "memory_from_start_bytes": 5 << 30, "device": {"name": "x", "cudnn": 91900},
      **({"cudagraph_skips": 2} if "--compile" in sys.argv else {})}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": [0.012 if "bf16" in sys.argv else 0.013]}), flush=True)
"""
STAND_IN_DARKNET = """#!/bin/sh
echo said before
echo '{"flop": 1, "activation_bytes_fp32": 6442450944, "activation_bytes_mixed": 1610612736}'
"""
STAND_IN_CEILINGS = """print('{"flops": 790e12, "bytes_per_second": 4300e9, "size": 8192, "gigabytes": 4}')"""

# scripts/bench-gpu with those.
WITH_TORCH = f"""
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader("script", {str(ROOT / "scripts/bench-gpu")!r})
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("script", loader))
loader.exec_module(script)
script.TORCH = [sys.executable, "-c", {STAND_IN_TORCH!r}]
script.CEILINGS = [sys.executable, "-c", {STAND_IN_CEILINGS!r}]
script.bench_lib.exits("bench-gpu", script.main)
"""


def near(actual, expected):
    """To the six digits that a record keeps."""
    assert abs(actual - expected) <= 1e-5 * abs(expected), (actual, expected)


def test_cfg():
    text = "[net]\nbatch=64\n# batch=1\nsubdivisions=16\nwidth = 608\n[yolo]\nrandom=1\n"
    cfg = bench_lib.make_cfg(text, 4, "mixed_precision=1\n", width=416)
    assert cfg == ("[net]\nmixed_precision=1\n\nbatch=4\n# batch=1\nsubdivisions=1\nwidth=416\n"
                   "[yolo]\nrandom=0\n"), cfg


def test_all_cfgs():
    """Whatever way a cfg of Darknet's writes its keys."""
    cfgs = sorted(CFGS.glob("*.cfg"))
    assert len(cfgs) > 40, cfgs
    for path in cfgs:
        made = bench_lib.make_cfg(path.read_text(), 6, width=96, height=64)
        lines = ["".join(line.split()) for line in made.splitlines()]
        keys = dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#;")
        assert keys["batch"] == "6" and keys.get("subdivisions", "1") == "1", (path, keys)
        assert keys.get("width", "96") == "96" and keys.get("height", "64") == "64", (path, keys)
        assert keys.get("random", "0") == "0", (path, keys)


def test_ratios():
    rounds = [{"a": [4, 2, 3], "b": [1], "c": [9]}, {"a": [8], "b": [2]}, {"b": [5]}]
    assert bench_lib.round_ratios(rounds, "a", "b") == {"median": 3.5, "min": 3, "max": 4}
    assert bench_lib.round_ratios(rounds, ["a", "c"], "b")["min"] == 3
    assert bench_lib.round_ratios(rounds, "b", "missing") is None
    assert bench_lib.median_seconds(rounds) == {"a": 5.5, "b": 2, "c": 9}


def test_roofline():
    assert bench_lib.peaks(H200) == (989e12, 4800e9)
    assert bench_lib.peaks({"name": "NVIDIA H100 80GB HBM3"})[1] == 3352e9
    assert bench_lib.peaks({"name": "NVIDIA A100-SXM4-80GB"})[1] == 2039e9
    near(bench_lib.peaks({**H200, "name": "Some GPU"})[0], 132 * 1.98e9 * 4096)
    near(bench_lib.training_flops(NETWORK), 2 * (99e9 - 0.15e9))
    near(bench_lib.training_bytes(NETWORK, 16), 12 * 30e6 * 16 + 26 * 62e6)
    arithmetic, memory = 2 * 98.85e9 * 16, 12 * 30e6 * 16 + 26 * 62e6
    rates = bench_lib.rates(NETWORK, 16, H200, 0.016)
    near(rates["roofline_share"], arithmetic / 989e12 / 0.016)
    near(rates["floor_share"], (arithmetic / 989e12 + memory / 4800e9) / 0.016)
    rates = bench_lib.rates(NETWORK, 16, H200, 0.016, (790e12, 4300e9))
    near(rates["roofline_share"], arithmetic / 989e12 / 0.016)
    near(rates["floor_share"], (arithmetic / 790e12 + memory / 4300e9) / 0.016)
    slow_memory = {**NETWORK, "macs": 1e9, "first_macs": 0}
    near(bench_lib.rates(slow_memory, 16, H200, 0.016)["roofline_share"], memory / 4800e9 / 0.016)
    rates = bench_lib.rates(NETWORK, 16, H200, 0.016)
    near(rates["images_per_second"], 1000)
    near(rates["tflops"], 197.7)


def test_output():
    assert bench_lib.iteration_seconds(ALEXEYAB, 1) == [1.07123, 1.06123]
    assert bench_lib.iteration_seconds(DARKNET, 0) == [0.5, 0.4]
    near(bench_lib.end_to_end_seconds(DARKNET, 0)[0], 0.75)
    assert bench_lib.last_json('x\n{"a": 1}\n{"a": 2}\ny') == {"a": 2}


def load_script():
    loader = importlib.machinery.SourceFileLoader("bench_gpu_script", str(ROOT / "scripts/bench-gpu"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_judge():
    script = load_script()
    own = {"heads": {"0": 0.001}, "weights": {"0": 0.2, "3": 0.01}}
    exact = {"heads": {"0": 0.0001}, "weights": {"0": 0.04, "3": 0.0001}}
    found = {"heads": {"0": 0.002}, "weights": {"0": 0.39, "3": 0.26}, "amp": own, "fp32": exact}
    verdict = script.judge("fp16", found)  # twice PyTorch's own error is let pass, 0.25 at least
    assert verdict["disagrees"] == ["weights 3: 0.26, limit 0.25"], verdict
    wrong = script.judge("fp32", found)["disagrees"]
    assert wrong == ["weights 0: 0.39, limit 0.08", "weights 3: 0.26, limit 0.06"], wrong
    wrong = script.judge("stock", found)["disagrees"]  # by whatever algorithm cuDNN chooses
    assert wrong == ["weights 0: 0.39, limit 0.25", "weights 3: 0.26, limit 0.25"], wrong
    zeros = {**found, "weights": {"0": 1}, "amp": {**own, "weights": {"0": 0.6}}}
    assert script.judge("fp16", zeros)["disagrees"] == ["weights 0: 1, limit 0.9"]
    nan = {**found, "heads": {"0": float("nan")}, "weights": {"0": 0}}
    assert len(script.judge("fp16", nan)["disagrees"]) == 1
    said = bench_report.error_lines("net", {"fp16": verdict, "fp32":
                                             script.not_compared("x\nbroke", script.Budget(9))})
    assert "own AMP 1.0e-03" in said[0] and "disagree" in said[1], said
    assert said[2].endswith("no comparison with PyTorch**: broke\n"), said


def bench(folder, contestants, *arguments, torch=False, check=False):
    """(what it said and its exit status, the record, its page) of a run against stand-ins, PyTorch's too
    with `torch`."""
    program, written = folder / "bin/bench_step", folder / "record.json"
    program.parent.mkdir(exist_ok=True)
    program.write_text(STAND_IN)
    program.chmod(0o755)
    for path in (written, written.with_suffix(".md")):
        path.unlink(missing_ok=True)
    run = subprocess.Popen(
        [sys.executable, *(["-c", WITH_TORCH] if torch else [ROOT / "scripts/bench-gpu"]),
         "--models", "small160", "--contestants", contestants, "--seconds", "0.1",
         *([] if check else ["--no-check"]), "--binaries", folder, "--json", written,
         *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = run.communicate()
    return (subprocess.CompletedProcess(run.args, run.returncode, *said),
            json.loads(written.read_text()), written.with_suffix(".md").read_text())


def test_run(folder):
    done, record, page = bench(folder, "stock,tf32,fp16,bf16,fixed", "--batches", "2,4", "--rounds", "3")
    assert done.returncode == 1 and "batch 4: tf32 failed; small160, batch 4: bf16 failed" in done.stderr
    assert [run["batch"] for run in record["runs"]] == [2, 4]
    run = record["runs"][1]
    assert set(run["contestants"]) == {"stock", "fp16", "fixed"}, run["contestants"]
    near(run["ratios"]["stock / fp16"]["median"], 3)
    near(run["contestants"]["fp16"]["images_per_second"], 400)
    assert "this one is broken" in run["failed"]["tf32"]
    assert "a batch of 3 where 4 was asked for" in run["failed"]["bf16"], run["failed"]
    assert "# Training steps on NVIDIA H200" in page and "| stock / fp16 | **3.00** |" in page, page
    assert "tf32: not measured: tf32: this one is broken" in page, page
    assert run["said"]["fixed"] == ["darknet-amp: timing"] and "stock" not in run["said"], run
    assert page.count(": timing") == 1 and "batch 4, fixed: timing" in page, page
    assert done.stdout.count("fixed: darknet-amp: timing") == 2, done.stdout


def test_beside_torch(folder):
    """As gpu-check.sh calls it, and other calls."""
    done, record, page = bench(folder, "fixed,torch,stock-tf32,fp16", "--batches", "16", "--rounds", "2",
                               "--check-batch", "16", torch=True, check=True)
    assert done.returncode == 0 and not done.stderr, done
    (run,) = record["runs"]
    assert list(run["contestants"]) == ["fixed", "torch", "fp16", "stock-tf32"], run["contestants"]
    near(run["ratios"]["torch / fixed"]["median"], 1.3)
    assert "| 2.00 (5.00) |" in page and "| 3.00 |" in page, page
    assert "| memory, fixed / torch | 1.50 | <= 1 | **missed** |" in page, page
    assert "| ratio on NVIDIA H200 | median" in page and "| bar on NVIDIA H200 | measured |" in page, page
    assert "| torch / fixed | 1.30 | >= 1.3 |" in page and run["bars"], page
    assert "at 790 TFLOP/s and 4300 GB/s, measured before" in page, page
    assert "at 989 TFLOP/s and 4800 GB/s by data sheet." in page and "no loss. alexeyab" in page, page
    near(run["contestants"]["fixed"]["floor_share"], bench_lib.rates(
        NETWORK, 16, H200, 0.010, (790e12, 4300e9))["floor_share"])
    assert "small160, stock: heads 1.0e-03" in page, page

    (folder / "bin/darknet").write_text(STAND_IN_DARKNET)
    (folder / "bin/darknet").chmod(0o755)
    done, record, page = bench(folder, "fixed,fp16,stock,torch-compile,torch", "--batches", "4,16",
                               "--rounds", "1", torch=True)
    assert done.returncode == 0 and len(record["runs"]) == 2 and not record["errors"], done
    assert {"torch / fixed", "torch-compile / fixed", "fastest torch / fixed",
            "stock / fp16"} == set(record["runs"][0]["ratios"])
    assert "**torch-compile: 2 compiled graphs run without CUDA graphs**" in page, page
    assert "a part of that memory: 1.50 GiB in mixed precision, 6.00 GiB in FP32." in page, page
    assert "fixed: 2.00 GiB of Darknet's FP32 arrays are addresses without memory." in page, page
    assert "Host: " in page, page

    # The fastest counts, whatever its way and its type.
    done, record, page = bench(folder, "fixed,torch,torch-autotune-bf16", "--batches", "4", "--rounds", "2", torch=True)
    (run,) = record["runs"]
    near(run["ratios"]["fastest torch / fixed"]["median"], 1.2)
    assert run["fastest_torch"] == ["torch-autotune-bf16"] * 2, run
    assert ("| fastest torch / fixed | 1.20 | >= 1.2 | met, without torch-graphs, torch-compile, torch-autotune, "
            "torch-bf16, torch-graphs-bf16, torch-compile-bf16 |\n") in page, page  # which may be faster
    assert "of torch, torch-autotune-bf16: torch-autotune-bf16, torch-autotune-bf16." in page, page

    done, record, page = bench(folder, "fixed,torch-graphs,torch-compile", "--batches", "4", "--rounds", "1",
                               torch=True)
    assert done.returncode == 75, done  # a peer that was named was not measured
    said = "torch-graphs: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.00 GiB."
    assert f"torch-graphs: not measured: {said}" in page, page
    assert done.stdout.splitlines()[-1] == f"Not measured: small160 batch 4: torch-graphs: {said}", done
    assert list(record["runs"][0]["contestants"]) == ["fixed", "torch-compile"], record["runs"]


def test_bars():
    """The bars of speed and memory: which hold for what, and how they are told."""
    def at(model, batch, ours, stock, torch, card="NVIDIA H200 NVL", **speeds):
        names = {"fp16": ours, "stock": stock, "fixed": ours, "torch": torch}
        contestants = {name: {"memory_bytes": steps, "memory_from_start_bytes": whole}
                       for name, (steps, whole) in names.items()}
        ratios = {name.replace("_", " / "): {"median": value} for name, value in speeds.items()}
        contestants["fixed"]["floor_share"] = .45
        bars = bench_report.verdicts(card, model, batch, contestants, ratios)
        return {bar["what"]: (round(bar["value"], 3), bar["bar"], bar["met"]) for bar in bars}, bars

    # Stock is compared from reading the cfg on; PyTorch both ways.
    bars, listed = at("yolov3-416", 16, (30, 39), (90, 100), (31, 38), torch_fixed=1.3, stock_fp16=7.9)
    assert bars == {"memory, fp16 / stock": (.39, "<= 0.4", True),
                    "memory, fixed / torch": (.968, "<= 1", True),
                    "memory from the start, fixed / torch": (1.026, None, None),
                    "torch / fixed": (1.3, ">= 1.3", True), "stock / fp16": (7.9, ">= 8", False)}, bars
    bars, _ = at("yolov3-416", 64, (30, 39), (90, 100), (31, 38), torch_fixed=1.2)
    assert bars["memory, fp16 / stock"] == (.39, "<= 0.33", False), bars
    assert bars["share of the floor, fixed"] == (.45, ">= 0.5", False), bars
    bars, _ = at("yolov2-416", 4, (30, 39), (90, 100), (31, 38), **{"fastest torch_fixed": 1.19})
    assert bars["memory, fp16 / stock"] == (.39, None, None), bars
    assert bars["fastest torch / fixed"] == (1.19, ">= 1.2", False), bars
    bars, _ = at("yolov2-416", 64, (30, 39), (90, 100), (31, 38), **{"fastest torch_fixed": 1.09})
    assert bars["fastest torch / fixed"] == (1.09, ">= 1.08", True), bars
    other, _ = at("yolov2-416", 4, (30, 39), (90, 100), (31, 38), card="Tesla T4", torch_fixed=1.9)
    assert set(other.values()) == {(.39, None, None), (.968, None, None), (1.026, None, None)}, other
    said = bench_report.loader_lines({"end_to_end": {"images_per_second": 600.},
                                      "contestants": {"fp16": {"images_per_second": 800.}}})[1]
    assert said.endswith("600 images/s; the step alone (fp16): 800, so 75% of it."), said
    fastest = [{"what": "fastest torch / fixed", "value": 1.3, "bar": ">= 1.2", "met": met} for met in (True, False)]
    said = [[line.split(" | ")[-1] for line in bench_report.bar_lines({"bars": fastest, "torch_left_out": missing})[3:]]
            for missing in ([], ["torch-graphs"])]
    assert said == [["met |", "**missed** |"], ["met, without torch-graphs |", "**missed** |"]], said
    lines = bench_report.bar_lines({"bars": listed})
    assert "| memory, fp16 / stock | 0.39 | <= 0.4 | met |" in lines, lines
    assert "| memory from the start, fixed / torch | 1.03 | - | - |" in lines, lines
    assert bench_report.verdicts("NVIDIA H200", "yolov3-416", 16, {"fp16": {"memory_bytes": 1}}, {}) == []


def test_torch(folder):
    """torch_net.py in mixed precision on the CPU: what of it does not need a GPU."""
    python = python_with_torch()
    if not python:
        print("SKIPPED torch_net.py: PyTorch is not here")
        return
    cfg, weights = folder / "toy.cfg", folder / "toy.weights"
    cfg.write_text(bench_lib.make_cfg(toyset.CFG.format(size=32, batch=2, max_batches=1, net_keys="",
                                                        random=0), 2))

    def torch_net(*arguments, **options):
        return subprocess.run([python, ROOT / "scripts/torch_net.py", cfg, weights, *arguments],
                              capture_output=True, text=True, check=True, **options).stdout

    torch_net("--prepare", folder)
    deltas = sorted(path.name for path in folder.glob("delta_*.bin"))
    assert deltas == ["delta_0.bin", "delta_1.bin"], deltas
    served = bench_lib.json_lines(torch_net(
        "--serve", "--amp", "bf16", "--layout", "channels_last", "--warmup", "1", "--group", "2",
        input="start\n0.01\n0.01\n"))
    assert served[0]["batch"] == 2 and len(served) == 3 and served[2]["seconds"][0] > 0, served
    ceilings = json.loads(subprocess.run(
        [python, ROOT / "scripts/torch_ceilings.py", "--device", "cpu", "--size", "64", "--gigabytes", "0.001"],
        capture_output=True, text=True, check=True).stdout)
    assert ceilings["flops"] > 1e6 and ceilings["bytes_per_second"] > 1e6, ceilings

    def floats(name, values):
        (folder / name).write_bytes(array.array("f", values).tobytes())

    draw = random.Random(1)
    floats("input.bin", (draw.random() for _ in range(2 * 3 * 32 * 32)))
    for delta in deltas:  # heads of zeros are wrong by all there is
        floats(delta.replace("delta", "head"), [0] * ((folder / delta).stat().st_size // 4))
    found = json.loads(torch_net("--check", folder, "--amp", "bf16"))
    assert found["heads"] == {"0": 1, "1": 1} and found["weights"] == {}, found
    assert all(0 < error < 1e-5 for error in found["fp32"]["heads"].values()), found
    assert all(0 < error < 1e-3 for error in found["fp32"]["weights"].values()), found
    assert all(0 < error < 0.05 for error in found["amp"]["heads"].values()), found
    assert all(0 < error < 0.5 for error in found["amp"]["weights"].values()), found


test_cfg()
test_all_cfgs()
test_ratios()
test_roofline()
test_output()
test_judge()
test_bars()
for tests in ([test_run, test_beside_torch], [test_torch]):
    with tempfile.TemporaryDirectory() as scratch:
        for test in tests:
            test(Path(scratch))
