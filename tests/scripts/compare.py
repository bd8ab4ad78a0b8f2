"""scripts/compare on the toy set: a comparison that is killed and goes on is the one that never
stopped; what it says of folders that hold too little or something else; the page in a browser.

usage: compare.py ROOT DARKNET
"""

import fcntl
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(ROOT / "tests"))
import browser
import toyset

ITERATIONS = 160
COMMAND = [sys.executable, "-B", ROOT / "scripts/compare", "--darknet", DARKNET]
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="2")


def words(*arguments):
    return [str(word) for word in arguments]


def compare(folder, *arguments, status=0):
    """Runs it in the folder; all that it says."""
    done = subprocess.run(words(*COMMAND, *arguments), cwd=folder, env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, "status %d\n%s" % (done.returncode, done.stdout[-3000:])
    return done.stdout


def refuses(folder, *arguments, says):
    """One line, status 1, and no traceback."""
    said = compare(folder, *arguments, status=1)
    assert said.startswith("compare: ") and said.count("\n") == 1, said
    assert says in said, said


def report(out):
    """All that the page shows, without the note that the machine was busy, which is not ours to say."""
    found = json.loads(re.search(r'id="data">(.*?)</script>', (out / "report.html").read_text())[1])
    found["notes"] = [note for note in found["notes"] if "busy with other things" not in note]
    return found


def without_timing(found):
    """The report less what differs between two machines, or two hours."""
    for part in found["variants"] + found["runs"]:
        del part["cost"]
    del found["machine"]
    return found


# ---- whole comparisons ----


MORE = ["--stock", "--control", "--variant", "static:loss_scale=64,layer6.mixed_precision=0", "--samples", 1]


def check_more_variants(folder):
    """Added to the pairs that are there, which are not repeated."""
    said = compare(folder, "toy.data", "toy.cfg", "--seeds", 2, "--out", "whole", *MORE)
    assert "mixed precision, seed" not in re.sub(r"(?m)^  .*", "", said), said
    found = report(folder / "whole")
    names = [v["name"] for v in found["variants"]]
    assert names == ["fp32", "mixed", "static", "control", "stock"], names
    assert [v["variant"] for v in found["verdicts"]] == ["mixed", "static", "stock"]
    assert found["verdicts"][0]["sentence"] in said
    assert len(found["notes"]) == 1 and "1x1 convolution" in found["notes"][0], found["notes"]
    runs = {run["name"]: run for run in found["runs"]}
    assert len(runs) == 9 and all(run["finished"] for run in runs.values())
    for seed in (1, 2):
        fp32, mixed = runs["fp32-%d" % seed], runs["mixed-%d" % seed]
        first = [run["curves"]["loss"][0][1] for run in (fp32, mixed)]
        assert abs(first[0] / first[1] - 1) < 0.05, "not the same weights and images: %s" % first
        assert fp32["maps"] != mixed["maps"] and mixed["numerics"]["scale_max"] > 1
        assert mixed["cost"]["images_per_second"] > 0 and mixed["cost"]["peak_memory_mb"] > 1
    assert runs["static-1"]["numerics"]["scale_min"] == runs["static-1"]["numerics"]["scale_max"] == 64
    assert runs["fp32-1"]["curves"]["loss"][0] == runs["control-1"]["curves"]["loss"][0]
    assert runs["fp32-1"]["curves"]["loss"] != runs["control-1"]["curves"]["loss"]
    assert runs["fp32-1"]["curves"]["loss"][0] != runs["fp32-2"]["curves"]["loss"][0]
    assert "mixed precision" not in (folder / "whole/runs/stock-1/train.log").read_text()
    assert len(runs["stock-1"]["curves"]["map"]) == len(runs["fp32-1"]["curves"]["map"]) > 5
    assert runs["stock-1"]["cost"]["seconds_per_iteration"] > 0
    left = sorted(path.name for path in (folder / "whole/runs/mixed-1").glob("net*"))
    assert left == ["net.cfg", "net_final.weights"], left
    cfg = (folder / "whole/runs/static-2/net.cfg").read_text()
    assert "seed=2\n" in cfg and cfg.count("mixed_precision=") == 2, cfg
    difference = found["variants"][1]["difference"]["map50"]
    expected = [runs["mixed-%d" % s]["maps"]["map50"] - runs["fp32-%d" % s]["maps"]["map50"]
                for s in (1, 2)]
    assert difference["differences"] == expected, (difference, expected)
    assert "| mAP50 |" in (folder / "whole/report.md").read_text()
    check_record(folder / "whole", found)
    check_machines(folder)


def check_record(out, shown):
    """report.json says of every run what the page says, but has no curves, no layers, and few lines."""
    text = (out / "report.json").read_text()
    record = json.loads(text)
    assert len(text.splitlines()) < 80 and "curves" not in text, text
    assert "layers" not in record["plan"] and record["plan"]["flop"] == shown["plan"]["flop"]
    assert record["settings"] == shown["settings"] and record["machine"] == shown["machine"]
    for run, full in zip(record["runs"], shown["runs"], strict=True):
        assert (run["name"], run["seed"]) == (full["name"], full["seed"])
        assert all(math.isclose(value, full["maps"][key], rel_tol=1e-5)
                   for key, value in run["maps"].items()), (run["maps"], full["maps"])
    assert [v["verdict"] for v in record["verdicts"]] == [v["verdict"] for v in shown["verdicts"]]


def check_machines(folder):
    """The report names the machine that trained, not the one that it is written on."""
    path = folder / "whole/runs/fp32-1/run.json"
    before = path.read_text()
    state = json.loads(before)
    state["host"].update(cpu="A 6502", cores=1, commit="0123456789ab")
    path.write_text(json.dumps(state))
    said = compare(folder, "toy.data", "toy.cfg", "--seeds", 2, "--out", "whole", *MORE, "--report-only")
    path.write_text(before)
    assert "A 6502, 1 core," in said and "0123456789ab" in said, said
    assert "from different machines" in said and "from different builds" in said, said


def kill_in_the_middle(command, folder, run):
    """kill -9 after its first backup; False where it was faster."""
    program = subprocess.Popen(words(*command), cwd=folder, env=ENVIRONMENT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while program.poll() is None and not (run / "net.backup").exists():
        time.sleep(0.002)
    program.kill()
    program.wait()
    return not (run / "net_final.weights").exists()


def check_interrupted(folder):
    """Killed in its second run, of four; Darknet must die with it. Then with fewer seeds, then all."""
    command = ["toy.data", "toy.cfg", "--seeds", 2, "--samples", 0]
    compare(folder, *command, "--out", "whole")
    for attempt in range(5):
        out = folder / ("broken%d" % attempt)
        if kill_in_the_middle([*COMMAND, *command, "--out", out], folder, out / "runs/mixed-1"):
            break
    else:
        raise AssertionError("five runs were over before they could be killed")
    time.sleep(0.2)
    size = (out / "runs/mixed-1/train.log").stat().st_size
    time.sleep(0.3)
    assert size == (out / "runs/mixed-1/train.log").stat().st_size, "Darknet goes on alone"
    said = compare(folder, *command, "--out", out, "--report-only")
    assert re.search(r"mixed-1: not finished: \d+ of %d iterations; left out" % ITERATIONS, said), said
    assert "no pair of finished runs with FP32 yet" in said, said
    begun = (out / "runs/fp32-1/net_final.weights").stat().st_mtime_ns
    said = compare(folder, "toy.data", "toy.cfg", "--seeds", 1, "--samples", 0, "--out", out)
    assert re.search(r"mixed precision, seed 1, from iteration 100\n", said), said
    said = compare(folder, *command, "--out", out)
    assert "seed 1" not in re.sub(r"(?m)^  .*", "", said), "a finished run was repeated: " + said
    assert (out / "runs/fp32-1/net_final.weights").stat().st_mtime_ns == begun
    unbroken, broken = (without_timing(report(folder / name)) for name in ("whole", out))
    assert unbroken == broken, "\n".join(difference_of(unbroken, broken))


def check_stopped_at_the_end(folder):
    """Its last backup is of the last iteration, its final weights are half written."""
    command = ["toy.data", "toy.cfg", "--seeds", 1, "--samples", 0, "--iterations", 100, "--out", "end"]
    compare(folder, *command)
    whole = without_timing(report(folder / "end"))
    run = folder / "end/runs/mixed-1"
    weights, state = (run / "net_final.weights").read_bytes(), json.loads((run / "run.json").read_text())
    (run / "net.backup").write_bytes(weights)
    (run / "net_final.weights").write_bytes(weights[:1000])
    (run / "run.json").write_text(json.dumps(dict(state, finished=False)))
    (run / "map.json").unlink()
    compare(folder, *command)
    assert (run / "net_final.weights").read_bytes() == weights
    assert without_timing(report(folder / "end")) == whole


def difference_of(a, b):
    texts = [json.dumps(found, indent=1).splitlines() for found in (a, b)]
    return ["%s / %s" % pair for pair in zip(*texts) if pair[0] != pair[1]][:20]


def check_readme(folder):
    """The README's command, as it stands there."""
    text = (ROOT / "README.md").read_text()
    command = re.search(r"`scripts/compare.sh ([^`]*)`", text)[1]
    arguments = shlex.split(command, comments=True)
    assert arguments[:2] == ["DATA", "CFG"] and "--seeds" in arguments, arguments
    arguments[arguments.index("--seeds") + 1] = "1"  # five are for real data
    said = compare(folder, "toy.data", "toy.cfg", *arguments[2:], "--samples", 1, "--gpu", -1,
                   "--out", "readme")
    assert "No verdict on mAP50 with mixed precision: one seed" in said, said
    assert "of the images only |" in said, "an interval of one seed passes for that of seeds"


# ---- folders that hold too little, or something else ----


def check_refused(folder):
    out = folder / "bad"
    shutil.copytree(folder / "whole", out)
    command = ["toy.data", "toy.cfg", "--seeds", 2, "--samples", 0, "--out", out]
    run = out / "runs/mixed-2"

    refuses(folder, *command, "--iterations", 300, says="fp32-1 is a run with another cfg")
    refuses(folder, *command, "--iterations", 300, "--report-only", says="with another cfg")
    other = toyset.make(folder / "other", max_batches=ITERATIONS, net_keys="amp_dtype=fp16", seed=2)
    refuses(folder, other / "toy.data", *command[1:], says="fp32-1 is a run with another data set")
    refuses(folder, *command[:2], run / "net_final.weights", *command[2:],
            says="fp32-1 is a run with another initial weights")
    swapped = (run / "run.json").read_text()
    shutil.copy(out / "runs/mixed-1/run.json", run / "run.json")
    refuses(folder, *command, says="mixed-2 is a run with another cfg")
    (run / "run.json").write_text(swapped[:40])
    refuses(folder, *command, says="mixed-2/run.json holds no JSON object")
    (run / "run.json").write_text(swapped)
    os.rename(run / "net_final.weights", run / "away")
    refuses(folder, *command, says="mixed-2 is finished, but its net_final.weights is missing")
    os.rename(run / "away", run / "net_final.weights")

    os.rename(run / "run.json", run / "away")
    refuses(folder, *command, says="mixed-2 holds no run.json")
    os.rename(run / "away", run / "run.json")

    lock = open(out / "lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    refuses(folder, *command, says="another comparison is at work there")
    lock.close()
    (run / "run.json").write_text('{"made_for": 3}')
    refuses(folder, *command, says="mixed-2/run.json is not what this program writes")
    (run / "run.json").write_text(swapped)
    assert "net_final" not in compare(folder, *command)


def check_never_started(folder):
    """A folder made for another cfg, where no training began, is made anew; one that began is not."""
    out = folder / "remade"
    shutil.copytree(folder / "whole", out)
    command = ["toy.data", "toy.cfg", "--seeds", 2, "--samples", 0, "--out", out]
    run = out / "runs/mixed-2"
    state = json.loads((run / "run.json").read_text())
    state["made_for"]["cfg"] = "another"
    (run / "run.json").write_text(json.dumps(state))
    refuses(folder, *command, says="mixed-2 is a run with another cfg")
    (run / "run.json").write_text(json.dumps(dict(state, starts=[], finished=False)))
    compare(folder, *command)
    assert json.loads((run / "run.json").read_text())["finished"]
    assert without_timing(report(out)) == without_timing(report(folder / "whole"))


def check_honest(folder):
    """A report on what is there, with a note on what is not."""
    out = folder / "bad"
    command = ["toy.data", "toy.cfg", "--seeds", 2, "--samples", 0, "--out", out, "--report-only"]
    run = out / "runs/mixed-2"
    log, measured = (run / "iterations.jsonl").read_text(), (run / "map.json").read_text()

    def notes_with(name, text):
        """The notes once this file holds this text, or is gone."""
        path = run / name
        kept = path.read_text()
        path.unlink() if text is None else path.write_text(text)
        compare(folder, *command)
        path.write_text(kept)
        return report(out)["notes"]

    assert notes_with("iterations.jsonl", log) == []
    assert notes_with("iterations.jsonl", log[:-30]) == ["mixed-2: iterations.jsonl ends inside a line."]
    assert "is missing: nothing on its numbers" in notes_with("iterations.jsonl", None)[0]
    rest = [line for line in log.splitlines(True) if not 100 < json.loads(line)["iteration"] <= 150]
    assert "50 of %d iterations are missing" % ITERATIONS in notes_with("iterations.jsonl",
                                                                        "".join(rest))[0]
    of_another = (out / "runs/mixed-1/iterations.jsonl").read_text()
    assert "is of another run: its loss of iteration 1 is" in notes_with("iterations.jsonl", of_another)[0]
    assert report(out)["runs"][3]["curves"]["loss_scale"] == []
    assert notes_with("map.json", None) == ["mixed-2: its mAP was not measured yet; left out."]
    assert report(out)["variants"][1]["seeds"] == [1]
    for wrong in ({"bootstrap": 3}, {k: v for k, v in json.loads(measured).items() if k != "map75"}):
        (run / "map.json").write_text(json.dumps(wrong))
        refuses(folder, *command, says="map.json is not what detector map writes: delete it")
    (run / "map.json").write_text(measured)
    other = json.loads(measured)
    other["settings"]["images"] += 1
    assert "of other images" in notes_with("map.json", json.dumps(other))[0]
    compare(folder, *command[:3], 1, *command[4:])
    assert report(out)["notes"] == ["Not part of this comparison though in its folder: fp32-2, mixed-2."]
    said = compare(folder, *command[:-2], folder / "empty", "--report-only")
    assert "no pair of finished runs" in said and "fp32-1: not finished: 0 of" in said, said


def check_inputs(folder):
    common = ["--out", "inputs", "--seeds", 1]
    refuses(folder, "none.data", "toy.cfg", *common, says="none.data is missing")
    refuses(folder, "toy.data", "none.cfg", *common, says="cfg none.cfg is missing")
    refuses(folder, "toy.data", "toy.cfg", "none.weights", *common, says="none.weights is missing")
    (folder / "short.data").write_text("train=train.txt\nnames=toy.names\n")
    refuses(folder, "short.data", "toy.cfg", *common, says="short.data: no valid")
    refuses(folder, "toy.data", "toy.cfg", *common, "--variant", "a:layer99.mixed_precision=0",
            says="none is layer 99")
    refuses(folder, "toy.data", "toy.cfg", *common, "--variant", "a:loss_scale=big",
            says="a: error: net.cfg:")
    refuses(folder, "toy.data", "toy.cfg", *common, "--variant", "a:batch=2", says="the same in all runs")
    (folder / "a-file").write_text("")
    refuses(folder, "toy.data", "toy.cfg", "--out", "a-file/out", says="a-file/out: Not a directory")
    cfg = (folder / "toy.cfg").read_text()
    lines = cfg.splitlines()
    lines.insert(lines.index("[yolo]") + 1, "ignore_thresh=x")
    (folder / "wrong.cfg").write_text("\n".join(lines))
    refuses(folder, "toy.data", "wrong.cfg", *common, says=f"net.cfg:{lines.index('ignore_thresh=x') + 1}: ignore_thresh")
    for name, wrong in (("max_batches", "4x"), ("batch", "4 # x")):
        (folder / "wrong.cfg").write_text(re.sub(r"(?m)^%s *=.*" % name, "%s = %s" % (name, wrong), cfg))
        refuses(folder, "toy.data", "wrong.cfg", *common, says="%s under [net]: " % name)
    (folder / "latin.cfg").write_bytes(b"# gr\xfc\xdfe\n" + cfg.encode())
    names = (folder / "toy.names").read_bytes().splitlines()
    (folder / "latin.names").write_bytes(b"".join(name + b"\xfc\n" for name in names))
    (folder / "latin.data").write_text((folder / "toy.data").read_text().replace("toy.names",
                                                                                 "latin.names"))
    compare(folder, "latin.data", "latin.cfg", "--out", "latin", "--seeds", 1, "--iterations", 10)
    assert (folder / "latin/runs/mixed-1/net.cfg").read_bytes().startswith(b"# gr\xfc\xdfe\n")
    assert (folder / "latin/lists/set.names").read_bytes() == (folder / "latin.names").read_bytes()
    assert "DATA and CFG are needed" in compare(folder, "toy.data", status=2)
    assert not (folder / "inputs/runs").exists(), "a cfg that is refused left a folder"


# ---- what the log may hold, and the page ----


def add_numbers(run):
    """Known gradient norms, layers and evaluations in a log, in place of its own."""
    path, text = run / "iterations.jsonl", []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "evaluation" in entry or "summary" in entry:
            continue
        n = entry["iteration"]
        entry.pop("layers", None)
        entry["grad_norm"] = 100 / n if n % 7 else None
        if n % 50 == 0:
            entry["layers"] = [
                {"layer": i, "type": "convolutional", "format": "fp16" if i else "fp32",
                 "out_max": 10.0 * n + i, "delta_max": 0.5, "delta_zero": i / 10} for i in range(3)]
            if "fp32" in run.name:
                entry["layers"][2]["delta_zero"] = 0.05
        text.append(json.dumps(entry))
        if n % 100 == 0:
            text.append(json.dumps({"iteration": n, "evaluation": {
                "map50": n / 1000, "map75": 0.1, "map": 0.2, "seconds": 0.5}}))
    path.write_text("\n".join(text) + "\n")


def check_numbers(folder):
    out = folder / "whole"
    for name in ("fp32-1", "fp32-2", "mixed-1", "mixed-2"):
        add_numbers(out / "runs" / name)
    compare(folder, "toy.data", "toy.cfg", "--seeds", 2, "--out", "whole", *MORE, "--report-only",
            "--metric", "map")
    found = report(out)
    assert len(found["notes"]) == 1, found["notes"]
    assert "mAP@[.5:.95] with mixed precision" in found["verdicts"][0]["sentence"], found["verdicts"]
    heat = found["heat"]["mixed"]
    assert heat["run"] == "mixed-1" and heat["iterations"] == [50, 100, 150], heat
    assert heat["delta_zero"] == [[0] * 3, [0.1] * 3, [0.2] * 3], heat
    assert [[round(v, 9) for v in row] for row in heat["underflow"][1:]] == [
        [0] * 3, [0.15] * 3], heat
    assert heat["underflow"][0] == heat["headroom"][0] == [None] * 3, "layer 0 is stored as FP32"
    assert heat["extremes"]["output"] == {"value": 1502.0, "layer": 2, "type": "convolutional",
                                          "iteration": 150}, heat
    assert heat["extremes"]["delta"]["value"] == 0.5, heat
    mixed = found["runs"][1]
    assert mixed["name"] == "mixed-1" and mixed["curves"]["map"] == [[100, 0.2]], mixed
    assert mixed["curves"]["grad_norm"][0] == [1, 100.0]
    assert mixed["cost"]["seconds_to_fp32"] > 0
    assert "time to FP32's last mAP" in (out / "report.md").read_text()


def check_page(folder):
    page = folder / "whole/report.html"
    assert page.read_text().count("data:image/jpeg;base64,") == 5
    found = report(folder / "whole")
    assert [part["variant"] for part in found["detection"]] == ["fp32", "mixed", "static", "control", "stock"]
    shown = browser.drawn(page, folder / "browser")
    if shown is None:
        return
    drawn = shown.count("<path"), shown.count("<canvas")
    lines = [1 for run in found["runs"] for key, points in run["curves"].items()
             if points and (key, run["variant"]) != ("loss_scale", "fp32")]
    # Three pictures of a variant that stores 16 bits; the control stores FP32 alone, which has no headroom.
    assert sorted(found["heat"]) == ["control", "mixed", "static"], found["heat"].keys()
    # Of each detector precision over recall, and F1 over scores.
    assert len(lines) >= 19 and drawn == (len(lines) + 2 * 5, 3 + 3 + 1), (drawn, lines)
    assert 'aria-label="differences to FP32' in shown and shown.count('aria-label="confusion matrix of') == 5


with tempfile.TemporaryDirectory() as root:
    toy = toyset.make(Path(root) / "toy", max_batches=ITERATIONS, net_keys="amp_dtype=fp16")
    check_interrupted(toy)
    check_stopped_at_the_end(toy)
    check_refused(toy)
    check_never_started(toy)
    check_honest(toy)
    check_inputs(toy)
    check_readme(toy)
    check_more_variants(toy)
    check_numbers(toy)
    check_page(toy)
