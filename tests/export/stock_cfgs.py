"""Every cfg that Darknet ships is exported, and is then what Darknet computes, or is refused by a layer's name.

usage: stock_cfgs.py DARKNET CFG_FOLDER small|all     small: those that take a moment
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nets

SMALL_FLOP, SMALL_WEIGHTS = 3e9, 1e7
REFUSED = {"rnn.cfg": "[rnn]", "rnn.train.cfg": "[rnn]", "gru.cfg": "[gru]", "yolo9000.cfg": "[region]"}


def size_of(darknet, cfg):
    plan = json.loads(subprocess.run([darknet, "amp", "plan", cfg, "--json", "--nogpu"], capture_output=True).stdout)
    return plan["flop"], sum(count for layer in plan["network"]["layers"] for _, count in layer["weights"])


def check_cfg(darknet, cfg, folder, numpy):
    weights, made = folder / "net.weights", folder / "net.onnx"
    made.unlink(missing_ok=True)
    nets.make_weights(nets.describe(darknet, cfg), weights, numpy.random.default_rng(len(cfg.name)))
    done = nets.export(darknet, cfg, weights, made)
    if cfg.name in REFUSED:
        named = re.search(r"error: \S+: layer \d+ (\[\w+\])", done.stderr)
        assert done.returncode == 1 and named and named[1] == REFUSED[cfg.name] and not made.exists(), done
    else:
        assert done.returncode == 0 and "largest relative difference" in done.stdout, (cfg, done.stdout, done.stderr)
        print(cfg.name, done.stdout.splitlines()[-1], flush=True)


def main():
    darknet, cfgs, which = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
    if missing := nets.missing_packages():
        print(f"SKIPPED Darknet's cfgs exported as ONNX: Python has no {', '.join(missing)}")
        return
    import numpy
    os.chdir(cfgs.parent)  # for trees
    checked = 0
    with tempfile.TemporaryDirectory() as folder:
        for cfg in sorted(cfgs.glob("*.cfg")):
            flop, weights = size_of(darknet, cfg)
            if which == "all" or flop < SMALL_FLOP and weights < SMALL_WEIGHTS:
                check_cfg(darknet, cfg, Path(folder), numpy)
                checked += 1
    assert checked == (45 if which == "all" else checked) and checked > 4, checked


main()
