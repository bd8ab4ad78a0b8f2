"""Hunts for cfgs that pass our checks and crash Darknet: spoils small nets made of Darknet's stock cfgs
and trains one step with each; it must be refused, end with a message and status 1, or train.

usage: cfg_hunt.py DARKNET CFG_FOLDER [--rounds N] [--seed S] [--first ROUND]

Round r of seed S is always the same cfg. What crashes is written to ./crash-S-r.cfg. A Darknet built
with ASan (CMAKE_C_FLAGS=-fsanitize=address) shows far more than one without.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

STOCK = ["yolov3-tiny.cfg", "yolov2-tiny-voc.cfg", "yolov3-spp.cfg", "yolov2-voc.cfg", "yolo9000.cfg"]
HEADS = ("[yolo]", "[region]")
NUMBERS = ["-7", "-2", "-1", "0", "1", "2", "3", "4", "5", "7", "8", "9", "16", "33", "100", "1000", "70000",
           "999999", "2147483647", "4294967297", ".5", "1e9", "nan", "x", "1,2", "-1,-2", "0,1,2,3", "1x", ","]
LAYERS = {
    "[convolutional]": ["filters", "size", "stride", "pad", "padding", "groups", "batch_normalize", "binary",
                        "xnor", "activation"],
    "[deconvolutional]": ["filters", "size", "stride", "pad", "padding", "batch_normalize"],
    "[local]": ["filters", "size", "stride", "pad"],
    "[connected]": ["output", "batch_normalize"],
    "[maxpool]": ["size", "stride", "padding"],
    "[avgpool]": [], "[dropout]": ["probability"], "[crop]": ["crop_width", "crop_height"],
    "[route]": ["layers"], "[shortcut]": ["from", "alpha"], "[upsample]": ["stride", "scale"],
    "[reorg]": ["stride", "reverse", "flatten", "extra"], "[lrn]": ["size"], "[batchnorm]": [],
    "[activation]": ["activation"], "[l2norm]": [], "[logistic]": [], "[cost]": ["type"],
    "[softmax]": ["groups", "noloss", "tree", "spatial", "temperature"], "[rnn]": ["output"],
    "[gru]": ["output"], "[lstm]": ["output"], "[crnn]": ["hidden_filters", "output_filters"],
    "[yolo]": ["mask", "classes", "num", "anchors", "max", "random", "jitter", "map"],
    "[region]": ["classes", "num", "coords", "anchors", "softmax", "tree", "map", "rescore", "random"],
    "[detection]": ["classes", "num", "side", "coords"], "[iseg]": ["classes", "ids"],
    "[net]": ["batch", "subdivisions", "width", "height", "channels", "inputs", "time_steps", "policy", "steps",
              "scales", "step", "burn_in", "adam", "clip", "angle", "saturation", "exposure", "hue", "max_crop",
              "min_crop", "momentum", "decay", "mixed_precision", "amp_dtype", "loss_scale"],
}
ANYWHERE = ["truth", "onlyforward", "stopbackward", "dontload", "numload", "smooth", "learning_rate",
            "mixed_precision"]
GOOD = {"activation": ["leaky", "linear", "logistic", "elu", "mish"], "type": ["sse", "L1", "smooth", "none"],
        "policy": ["constant", "step", "steps", "poly", "random", "exp", "sigmoid", "cosine"],
        "amp_dtype": ["fp16", "bf16", "fp32", "fp8"], "tree": ["toy.tree", "none"], "map": ["toy.names", "toy.map"],
        "loss_scale": ["dynamic", "128"]}

# ---- cfgs ----


def parse(text):
    """[[name, [[key, value], ...]], ...]"""
    sections = []
    for line in text.splitlines():
        line = line.replace(" ", "").replace("\t", "")
        if line.startswith("["):
            sections.append([line, []])
        elif line and line[0] not in "#;":
            sections[-1][1].append(line.split("=", 1))
    return sections


def write(sections):
    return "".join("%s\n%s\n" % (name, "".join("%s=%s\n" % (key, value) for key, value in entries))
                   for name, entries in sections)


def put(entries, key, value):
    entries[:] = [entry for entry in entries if entry[0] != key] + [[key, value]]


def shrink(sections):
    """A net of a few filters and two classes that trains one step on 64 x 64."""
    for i, (name, entries) in enumerate(sections):
        keys = dict(entries)
        if name == "[net]":
            for key, value in (("batch", 2), ("subdivisions", 1), ("width", 64), ("height", 64), ("max_batches", 1)):
                put(entries, key, str(value))
        elif name == "[convolutional]":
            put(entries, "filters", str(max(4, int(keys["filters"]) // 32)))
        elif name in HEADS:
            boxes = keys["mask"].count(",") + 1 if "mask" in keys else int(keys["num"])
            entries[:] = [entry for entry in entries if entry[0] not in ("tree", "map")]
            put(entries, "classes", "2")
            put(entries, "random", "0")
            put(sections[i - 1][1], "filters", str(7 * boxes))
    return sections


def bases(folder):
    found = [parse(toyset.CFG.format(size=32, batch=2, max_batches=1, net_keys="", random=0))]
    return found + [shrink(parse((Path(folder) / name).read_text())) for name in STOCK
                    if (Path(folder) / name).exists()]


# ---- spoiling ----


def value_for(rng, key):
    if key in GOOD and rng.random() < .8:
        return rng.choice(GOOD[key])
    return rng.choice(NUMBERS)


def change_key(rng, sections):
    name, entries = rng.choice(sections)
    if entries and rng.random() < .5:
        entry = rng.choice(entries)
        entry[1] = value_for(rng, entry[0])
    else:
        key = rng.choice(LAYERS.get(name, []) + ANYWHERE)
        put(entries, key, value_for(rng, key))


def drop_key(rng, sections):
    entries = rng.choice(sections)[1]
    if entries:
        entries.pop(rng.randrange(len(entries)))


def insert_layer(rng, sections):
    name = rng.choice(list(LAYERS))
    small = ["1", "2", "3", "4", "8", "-1", "-2"]
    entries = [[key, rng.choice(GOOD.get(key, small))] for key in LAYERS[name] if rng.random() < .7]
    sections.insert(rng.randrange(len(sections)) + 1, [name, entries])


def drop_layer(rng, sections):
    if len(sections) > 1:
        sections.pop(rng.randrange(len(sections)))


def repeat_layer(rng, sections):
    name, entries = rng.choice(sections)
    sections.insert(rng.randrange(len(sections)) + 1, [name, [list(entry) for entry in entries]])


def swap_layers(rng, sections):
    i, j = rng.randrange(len(sections)), rng.randrange(len(sections))
    sections[i], sections[j] = sections[j], sections[i]


def spoil_bytes(rng, text):
    raw = bytearray(text.encode())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw))
        raw[at:at + rng.randint(0, 2)] = bytes([rng.choice(b"\n\r\0[]=,-9 #xZ\xff\t")])
    return bytes(raw)


def make_cfg(seed, number, folder):
    rng = random.Random("%d %d" % (seed, number))
    sections = [[name, [list(entry) for entry in entries]] for name, entries in rng.choice(bases(folder))]
    if rng.random() < .5:
        put(sections[0][1], "mixed_precision", "1")
    kinds = [change_key] * 5 + [insert_layer] * 3 + [drop_key, drop_layer, repeat_layer, swap_layers]
    for _ in range(rng.randint(1, 3)):
        rng.choice(kinds)(rng, sections)
    text = write(sections)
    return spoil_bytes(rng, text) if rng.random() < .1 else text.encode()


# ---- trying ----


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "ASAN_OPTIONS" not in os.environ:  # ASan reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def too_large(program, folder):
    """A net of more than memory has: Darknet then crashes on what calloc did not give."""
    done = subprocess.run([program, "amp", "plan", "toy.cfg", "--json"], cwd=folder, capture_output=True, text=True)
    try:
        plan = json.loads(done.stdout)
    except ValueError:
        return False
    weights = sum(layer["flop"] / 2 / max(1, layer["output"][0] * layer["output"][1]) for layer in plan["layers"])
    return plan["activation_bytes_fp32"] + 16 * weights > 1 << 30


def run(program, folder, *arguments):
    """Status, None where it took too long, and stderr."""
    try:
        done = subprocess.run([program, "detector", *arguments], cwd=folder, errors="replace", capture_output=True,
                              text=True, preexec_fn=limit, timeout=60)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stderr


def outcome(program, folder):
    """"refused", "trained" (and measured), "ended" (status 1 and a message), "slow" or what is wrong."""
    for old in (folder / "backup").iterdir():
        old.unlink()
    status, text = run(program, folder, "train", "toy.data", "toy.cfg")
    if status == 1 and "nothing was trained" in text:
        return "refused", text
    if status == 1 and "darknet-amp: " in text and "AddressSanitizer" not in text:
        return "ended", text
    if status == 0 and (folder / "backup/toy_final.weights").exists():
        status, text = run(program, folder, "map", "toy.data", "toy.cfg", "backup/toy_final.weights")
        if status == 0 or status == 1 and "error: " in text and "AddressSanitizer" not in text:
            return "trained", text
        text = "detector map: " + text
    return "slow" if status is None else "status %d" % status, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("darknet", type=os.path.abspath)
    parser.add_argument("cfgs", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    print("seed %d" % arguments.seed, flush=True)
    counts, crashes = {}, 0
    with tempfile.TemporaryDirectory() as root:
        good = Path(root) / "good"
        good.mkdir()
        here = os.getcwd()
        os.chdir(good)
        toyset.make(".", images=2)
        (good / "toy.tree").write_text("a -1\nb -1\n")
        (good / "toy.map").write_text("1\n0\n")
        os.chdir(here)
        for number in range(arguments.first, arguments.first + arguments.rounds):
            cfg = make_cfg(arguments.seed, number, arguments.cfgs)
            (good / "toy.cfg").write_bytes(cfg)
            what, text = outcome(arguments.darknet, good)
            if what.startswith("status") and too_large(arguments.darknet, good):
                what = "too large"
            counts[what] = counts.get(what, 0) + 1
            if number % 100 == 99:
                print("round %d: %s" % (number, counts), flush=True)
            if what.startswith("status") or what == "slow":
                print("round %d of seed %d: %s\n%s" % (number, arguments.seed, what, text[-1500:]), flush=True)
                Path("crash-%d-%d.cfg" % (arguments.seed, number)).write_bytes(cfg)
                crashes += what != "slow"
    print(", ".join("%d %s" % (counts[key], key) for key in sorted(counts)))
    sys.exit(1 if crashes else 0)


main()
