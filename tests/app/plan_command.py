"""`darknet amp plan` on every cfg that Darknet ships, and its errors.

usage: plan_command.py DARKNET CFG_FOLDER
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

SECONDS = 2  # of processor time, so that a busy machine does not fail the test
BYTES = 1 << 29  # no weights, no activations: yolo9000 alone has 1 GiB of weights


def run(program, folder, *arguments, **environment):
    return subprocess.run([program, "amp", "plan", *map(str, arguments)], cwd=folder,
                          capture_output=True, text=True, env={**os.environ, **environment})


def spent():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_stock(program, elsewhere, path):
    before = spent()
    done = run(program, elsewhere, path, "--json")
    assert done.returncode == 0, "%s: %s" % (path.name, done.stderr)
    assert spent() - before < SECONDS, "%s took %.1f s" % (path.name, spent() - before)
    plan = json.loads(done.stdout)
    sections = [line for line in path.read_text().splitlines() if line.startswith("[")]
    assert len(plan["layers"]) == len(sections) - 1, path.name
    dtype = plan["precision"]
    assert dtype in ("fp16", "bf16"), plan["precision"]
    for layer in plan["layers"]:
        assert layer["reason"], layer
        matrix = layer["type"] in ("convolutional", "deconvolutional", "local", "connected")
        recurrent = layer["type"] in ("rnn", "gru", "lstm", "crnn")
        multiplies = matrix or recurrent and "fewer than 16 vectors" not in layer["reason"]
        assert layer["math"] == (dtype.upper() if multiplies else "FP32"), layer
    assert 0 <= plan["flop_reduced"] <= plan["flop"] == sum(l["flop"] for l in plan["layers"])
    return plan


def check_table(program, elsewhere, path, plan):
    """The table says of every layer, and of all, what the JSON does."""
    done = run(program, elsewhere, path)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.split()[0].isdigit()]
    assert len(rows) == len(plan["layers"]), done.stdout
    for row, layer in zip(rows, plan["layers"]):
        shape = " x ".join(map(str, layer["output"])) if layer["output"][0] else layer["outputs"]
        assert row == "%5d %-15s %-18s %-5s %-10s %s" % (
            layer["index"], layer["type"], shape, layer["math"], layer["storage"], layer["reason"]), (row, layer)
        assert layer["recomputed"] == ("; computed again in backward" in layer["reason"]), layer
    again, flop = sum(layer["recomputed"] for layer in plan["layers"]), plan["flop"] / 100
    stock, mixed = (plan["activation_bytes_%s" % kind] for kind in ("fp32", "mixed"))
    exchanges = re.findall("has ([0-9]+) exchanges of batch-norm in forward and ([0-9]+) in backward", done.stdout)
    assert sum(map(int, exchanges[0] if exchanges else ())) == plan["sync_bn_exchanges"], (done.stdout, plan)
    for said, told in (
        ("plan: %s%s" % (plan["precision"], " (amp_dtype=auto: %s)" % plan["precision_reason"]
                         if plan["precision_reason"] else ""), True),
        ("%.1f %% of %.3f GFLOP per image" % (plan["flop_reduced"] / flop, plan["flop"] / 1e9), True),
        ("for %d images per pass: FP32 %.1f MiB, mixed %.1f MiB (%.2fx)" % (
            plan["batch"], stock / 2 ** 20, mixed / 2 ** 20, mixed / stock), True),
        ("backward computes %d layer%s again, %.1f %% of forward's" % (
            again, "s"[again == 1:], plan["flop_again"] / flop), again > 0),
        ("update: optimizer=%s" % plan["optimizer"], plan["optimizer"] != "sgd"),
        ("averages take %.1f MiB" % (plan["kept_bytes"] / 2 ** 20), plan["kept_bytes"] > 0),
        ("sends %.1f KiB" % (plan["sync_bn_bytes"] / 1024), plan["sync_bn_bytes"] > 0),
    ):
        assert (said in done.stdout) == told, (said, done.stdout, plan)


def check_every_field(program, folder):
    """No field is one that does not count here, and none is another's."""
    (folder / "every.cfg").write_text(
        "[net]\nwidth=64\nheight=32\nchannels=3\nbatch=4\nmixed_precision=1\namp_dtype=fp16\noptimizer=adamw\n"
        "amp_sync_bn=1\n[conv]\nfilters=256\nsize=3\npad=1\nbatch_normalize=1\ncheckpoint=1\n[max]\nsize=2\nstride=2\n"
        "[conv]\nfilters=256\nmixed_precision=0\n[conv]\nfilters=4\n[gru]\noutput=4\n[conn]\noutput=2\n[cost]\n")
    plan = json.loads(run(program, folder, "every.cfg", "--json").stdout)
    check_table(program, folder, "every.cfg", plan)
    assert [layer["storage"] for layer in plan["layers"]] == ["FP16", "FP16", "FP32"] + 4 * ["FP32 NCHW"], plan
    assert [layer["executor"] for layer in plan["layers"]] == 4 * ["amp"] + ["darknet", "amp", "darknet"], plan
    assert plan["kept_bytes"] > 2 ** 19 and plan["flop"] > plan["flop_reduced"] > plan["flop_again"] > 0, plan
    assert plan["sync_bn_exchanges"] and plan["sync_bn_bytes"], plan


def check_figures(program, folder, path):
    """What docs/results.md says of yolov3.cfg as it is shipped, in bf16: 608x608, 4 images in a pass. FP16 takes more,
    since backward may run again."""
    plans = {}
    for keys in ("amp_dtype=bf16", "amp_dtype=fp16", "amp_dtype=fp16\namp_on_overflow=skip", "amp_dtype=fp16\nloss_scale=64"):
        cfg = path.read_text().replace("[net]", "[net]\nmixed_precision=1\n" + keys, 1)
        (folder / "figures.cfg").write_text(cfg)
        plans[keys] = json.loads(run(program, folder, "figures.cfg", "--json").stdout)
    plan, *others = plans.values()
    repeated, *once = (other["activation_bytes_mixed"] for other in others)
    assert repeated > 1.05 * plan["activation_bytes_mixed"] and once == 2 * [plan["activation_bytes_mixed"]], plans
    stock, mixed = (plan["activation_bytes_%s" % kind] for kind in ("fp32", "mixed"))
    row = "%.0f MiB | %.0f MiB | %.2fx |" % (stock / 2 ** 20, mixed / 2 ** 20, mixed / stock)
    text = (Path(__file__).resolve().parents[2] / "docs/results.md").read_text()
    assert text.count(row) == 1, "`amp plan` says %s" % row


def check_dtype(program, folder, net):
    """auto depends on the processor, another value does not; both stand in the first line."""
    for key, isa, said in (("", "base", "fp16 (amp_dtype=auto: this CPU multiplies FP32 only"),
                           ("amp_dtype=auto\n", "base", "fp16 (amp_dtype=auto: this CPU"),
                           ("amp_dtype=bf16\n", "base", "bf16\n"), ("amp_dtype=fp16\n", None, "fp16\n")):
        (folder / "on.cfg").write_text(net + "mixed_precision=1\n" + key + "[conv]\n")
        environment = {"AMPK_CPU_ISA": isa} if isa else {}
        done = run(program, folder, folder / "on.cfg", **environment)
        assert done.stdout.startswith("mixed precision plan: " + said), done
        plan = json.loads(run(program, folder, folder / "on.cfg", "--json", **environment).stdout)
        assert plan["precision"] == said[:4] and (plan["precision_reason"] is None) == ("auto" not in said), plan
    if "avx512_bf16" in Path("/proc/cpuinfo").read_text().split():
        (folder / "on.cfg").write_text(net + "mixed_precision=1\n[conv]\n")
        done = run(program, folder, folder / "on.cfg", "--json")
        plan = json.loads(done.stdout)
        assert (plan["precision"], plan["precision_reason"]) == ("bf16", "this CPU multiplies BF16"), done


def check_processes(program, folder, net):
    """The pass of each process, also where training would raise subdivisions."""
    (folder / "several.cfg").write_text(net + "mixed_precision=1\nbatch=12\nsubdivisions=2\n[conv]\n")
    for n, images in ("1", 6), ("2", 6), ("3", 4), ("6", 2):
        plan = json.loads(run(program, folder, "several.cfg", "--json", "--processes", n, "--memory", "1").stdout)
        assert (plan["processes"], plan["batch"]) == (int(n), images), plan
        assert plan["as_written"]["subdivisions"] * images == plan["as_written"]["batch"] == 12, plan
        assert plan["largest_fit"]["subdivisions"] == int(n), plan
        grown = plan["largest_fit"]["batch"] / 12
        assert abs(plan["largest_fit"]["learning_rate"] / (plan["as_written"]["learning_rate"] * grown) - 1) < 1e-6, plan
    text = run(program, folder, "several.cfg", "--processes", "3", "--memory", "1").stdout
    assert "in each of 3 processes\n" in text and "one pass of each process takes" in text, text
    done = run(program, folder, "several.cfg", "--processes", "5")
    assert done.returncode == 1 and "several.cfg:7: 5 processes cannot share batch=12 with subdivisions=2; possible: 1, 2, " \
        "3, 4, 6, 12\n" in done.stderr, done
    (folder / "auto.cfg").write_text(net + "mixed_precision=1\nbatch=12\nsubdivisions=auto\n[conv]\n")
    done = run(program, folder, "auto.cfg", "--processes", "3")
    assert done.returncode == 1 and "subdivisions=auto: several processes need a number; --memory GIB says" in done.stderr
    plan = json.loads(run(program, folder, "auto.cfg", "--json", "--processes", "3", "--memory", "1").stdout)
    assert plan["batch"] == 4 and plan["as_written"] == plan["fit"], plan
    check_cannot_share(program, folder, net)


def check_large_batch(program, folder, net):
    """Beyond 8 times the batch it is told that the rate goes far."""
    said, batch = "times the rate: it needs a warm-up (burn_in; onecycle has one)", 4
    for far in True, False:
        (folder / "large.cfg").write_text(net + "mixed_precision=1\nbatch=%d\n[conv]\n" % batch)
        text = run(program, folder, "large.cfg", "--memory", "1").stdout
        largest = int(re.findall("batch=([0-9]+)", text)[-1])
        assert largest > (8 if far else 1) * batch and (said in text) == far, text
        batch = largest // 4


def check_cannot_share(program, folder, net):
    """Numbers of processes that training refuses, with and without the question of what fits."""
    for lines, n, said in (
        ("batch=12\nsubdivisions=auto\n", "13", "13 processes cannot share batch=12; change it to a multiple of 13"),
        ("batch=12\nsubdivisions=auto\namp_sync_bn=1\n", "5",
         "5 processes cannot share batch=12 evenly, for amp_sync_bn=1; change it to a multiple of 5"),
        ("batch=8\nsubdivisions=4\namp_sync_bn=1\n", "3", "none with batch=8; change that to a multiple of 3"),
        ("batch=8\nsubdivisions=4\namp_sync_bn=1\n", "3", "subdivisions=4: with amp_sync_bn=1 each of 3 processes"),
    ):
        (folder / "uneven.cfg").write_text(net + "mixed_precision=1\n" + lines + "[conv]\n")
        for more in (["--memory", "1"], ["--memory", "1", "--json"], *([] if "auto" in lines else [[]])):
            done = run(program, folder, "uneven.cfg", "--processes", n, *more)
            assert done.returncode == 1 and not done.stdout and said in done.stderr, (lines, more, done)
    (folder / "rnn.cfg").write_text("[net]\nmixed_precision=1\ninputs=4\nbatch=4\ntime_steps=2\n[rnn]\noutput=4\n")
    done = run(program, folder, "rnn.cfg", "--processes", "2")
    assert done.returncode == 1 and "rnn.cfg: layer 0 (rnn) hands its state" in done.stderr, done


def check_dialect(program, folder, net):
    """A cfg of AlexeyAB's Darknet is planned by its rules, also without mixed_precision=1."""
    cfg = folder / "fork.cfg"
    for keys in ("", "mixed_precision=1\n"):
        cfg.write_text(net + keys + "[conv]\nfilters=8\n[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"
                       "[conv]\nfilters=6\nactivation=linear\n[yolo]\nclasses=1\nanchors=4,4\n")
        reason = "line %d: groups=2" % (10 if keys else 9)
        assert run(program, folder, cfg).stdout.startswith("rules: fork (%s)\n" % reason)
        plan = json.loads(run(program, folder, cfg, "--json").stdout)
        assert (plan["rules"], plan["rules_reason"]) == ("fork", reason), plan
        assert [layer["output"] for layer in plan["layers"]] == [[8, 8, 8], [8, 8, 4], [8, 8, 6], [8, 8, 6]], plan
    cfg.write_text(net + "[conv]\nfilters=8\nbatch_normalize=1\nactivation=mish\n[softmax]\n")
    assert run(program, folder, cfg).stdout.splitlines()[0].endswith(
        ": activation=mish); images, loss and boxes by stock's: the net does not end in [yolo]")
    cfg.write_text(net + "mixed_precision=1\nmosaic=1\nletter_box=1\n[conv]\nfilters=6\nactivation=linear\n"
                   "[yolo]\nclasses=1\nanchors=4,4\n")
    done = run(program, folder, cfg)
    assert not done.returncode and "warning: training refuses this cfg: " in done.stderr and \
        ":%d: mosaic=1 in [net]: with letter_box=1 AlexeyAB's Darknet does not train" % (net.count("\n") + 2) in done.stderr, done


def check_fails(program, folder, text, *words):
    path = folder / "bad.cfg"
    path.write_text(text)
    done = run(program, folder, path)
    assert done.returncode == 1 and not done.stdout, done
    for word in words:
        assert word in done.stderr, "%s is not in: %s" % (word, done.stderr)


def check_without_the_key(program, folder, net):
    """The plan is the one that the cfg would have with mixed_precision=1, and so are its errors."""
    keys = "amp_dtype=fp32\noptimizer=adamw\nema_alpha=.9\ncheckpoint=auto:.000001\n"
    layers = "[conv]\nfilters=4\n[conv]\nfilters=4\n[conv]\nfilters=4\n[cost]\n"
    said = []
    for mixed in "mixed_precision=1\n", "mixed_precision=0\n", "":
        (folder / "keys.cfg").write_text(net + mixed + keys + layers)
        said.append(run(program, folder, "keys.cfg", "--memory", "1").stdout)
    assert "optimizer=adamw" in said[0] and "computes" in said[0] and said[1:] == said[:1] * 2, said
    check_fails(program, folder, net + "clip_grad_norm=1\nclip_grad_value=1\n[conv]\n", "clip_grad_")


def check_noise(program, folder, net):
    """The last noise scale of the log stands beside the batches that fit."""
    layers = "[conv]\nfilters=4\n[cost]\n"
    (folder / "noise.cfg").write_text(net + "mixed_precision=1\namp_log=noise.log\namp_log_noise=1\n" + layers)
    (folder / "noise.log").unlink(missing_ok=True)
    assert "noise scale is not known yet: noise.log has none" in run(program, folder, "noise.cfg", "--memory", "1").stdout
    nothing = json.loads(run(program, folder, "noise.cfg", "--memory", "1", "--json").stdout)["noise_scale"]
    assert nothing == {"log": "noise.log", "images": None, "iteration": None}, nothing
    (folder / "noise.log").write_text("".join(json.dumps(line) + "\n" for line in (
        {"iteration": 7, "gradient_noise_scale": 12.5}, {"iteration": 8, "gradient_noise_scale": 412.25},
        {"iteration": 9, "gradient_noise_scale": None}, {"iteration": 9, "summary": {"seconds": 1}})))
    text = run(program, folder, "noise.cfg", "--memory", "1").stdout
    assert "noise scale at iteration 8 was 412.2 images (noise.log)" in text, text
    known = json.loads(run(program, folder, "noise.cfg", "--memory", "1", "--json").stdout)["noise_scale"]
    assert known == {"log": "noise.log", "images": 412.25, "iteration": 8}, known
    (folder / "noise.cfg").write_text(net + "mixed_precision=1\namp_log_noise=1\n" + layers)
    told = run(program, folder, "noise.cfg", "--memory", "1")
    assert "noise scale" not in told.stdout and "has no effect without amp_log" in told.stderr, told


def main():
    program, cfgs = sys.argv[1], sorted(Path(sys.argv[2]).glob("*.cfg"))
    assert len(cfgs) == 45, len(cfgs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in cfgs:
            plan = check_stock(program, folder, path)
            if path.name in ("yolov3.cfg", "gru.cfg", "darknet9000.cfg"):
                check_table(program, folder, path, plan)
            if path.name == "yolov3.cfg":
                check_figures(program, folder, path)
        net = "[net]\nwidth=8\nheight=8\nchannels=3\n"
        check_fails(program, folder, net + "[conv]\n[softmax]\ntree=data/9k.tree\n",
                    "bad.cfg:7: tree=data/9k.tree: there is no such file")
        check_fails(program, folder, net + "[conv]\nactivation=gelu\n",
                    "bad.cfg:6: activation=gelu")
        check_fails(program, folder, net + "[sam]\nfrom=-1\n", "bad.cfg:5: [sam]")
        check_fails(program, folder, net + "amp_dtype=fp8\n[conv]\n",
                    "bad.cfg:5: amp_dtype=fp8: allowed: auto, fp16, bf16, tf32 or fp32")
        check_fails(program, folder, net + "Batch=8\n[conv]\n",
                    "bad.cfg:5: Batch=8 in [net]: unknown key; did you mean batch?")
        check_fails(program, folder, net + "amp_dialect=stock\n[conv]\nfilters=6\n[yolo]\nclasses=1\nnew_coords=1\n",
                    "bad.cfg:10: new_coords=1 in [yolo]", "another network")
        check_dialect(program, folder, net)
        check_every_field(program, folder)
        check_dtype(program, folder, net)
        (folder / "deconv.cfg").write_text(
            net + "mixed_precision=1\namp_dtype=bf16\n[deconv]\nfilters=4\nsize=3\nstride=2\nbatch_normalize=1\n[cost]\n")
        row = json.loads(run(program, folder, "deconv.cfg", "--json").stdout)["layers"][0]
        assert (row["type"], row["executor"], row["math"], row["output"]) == (
            "deconvolutional", "amp", "BF16", [17, 17, 4]), row
        assert row["flop"] == 2 * 8 * 8 * 3 * 4 * 9, row
        assert row["reason"].startswith("BF16 operands, sums and batch-norm arithmetic in FP32"), row
        (folder / "local.cfg").write_text(
            net + "mixed_precision=1\namp_dtype=bf16\n[conv]\nsize=3\n[local]\nfilters=4\nsize=3\nstride=2\n[cost]\n")
        row = json.loads(run(program, folder, "local.cfg", "--json").stdout)["layers"][1]
        assert (row["type"], row["executor"], row["math"], row["output"]) == ("local", "amp", "BF16", [2, 2, 4]), row
        assert row["flop"] == 2 * 2 * 2 * 4 * 9, row
        for level, keys in (("O2", "loss_scale=dynamic"), ("O3", "loss_scale=1: O2 with a fixed loss scale of 1")):
            (folder / "level.cfg").write_text(net + f"mixed_precision=1\namp_level={level}\noptimizer=adamw\n[conv]\n")
            text = run(program, folder, "level.cfg").stdout
            assert f"plan: fp16; amp_level={level} stands for amp_dtype=fp16, {keys}\n" in text, text
        assert "update: optimizer=adamw; its moments and averages take" in text, text
        check_processes(program, folder, net)
        check_large_batch(program, folder, net)
        check_without_the_key(program, folder, net)
        check_noise(program, folder, net)
        off = "mixed precision is off"
        for keys, told in ("", True), ("mixed_precision=0\n", True), ("mixed_precision=1\n", False):
            (folder / "on.cfg").write_text(net + keys + "[conv]\n")
            done = run(program, folder, folder / "on.cfg")
            assert done.returncode == 0 and (off in done.stderr) == told, done
            assert ("on.cfg:5: mixed_precision=0: mixed precision is off; with" in done.stderr) == ("=0" in keys), done
            assert ("is missing under [net]" in done.stderr) == (not keys), done
            (folder / "on.cfg").write_text(net + keys + "author=me\nlearning_rate=0\n[conv]\n")
            line = 5 + bool(keys)
            toyset.check_notes(
                run(program, folder, "on.cfg").stderr,
                "on.cfg:%d: author=me in [net]: has no effect in this section" % line,
                "on.cfg:%d: learning_rate=0 in [net]: the weights will not change" % (line + 1),
                *(["on.cfg:5: mixed_precision=0: mixed precision is off; with mixed_precision=1 the plan would be:"]
                  if "=0" in keys else []))
        done = run(program, folder, folder / "missing.cfg")
        assert done.returncode == 1 and "missing.cfg" in done.stderr, done
        with open("/dev/full", "w") as full:
            done = subprocess.run([program, "amp", "plan", cfgs[0]], stdout=full,
                                  stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and "cannot be written" in done.stderr, done
        for arguments in ([], ["--yaml", "bad.cfg"], ["bad.cfg", "bad.weights", "more"]):
            done = run(program, folder, *arguments)
            assert done.returncode == 1 and "amp plan --help" in done.stderr, done
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak < BYTES, peak


main()
