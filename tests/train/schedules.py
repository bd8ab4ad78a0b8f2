"""Darknet trains with the rate of a policy of ours, and prints it, in every way to attach; and has its own
rate back after detaching.

usage: schedules.py DARKNET LIBDARKNET LIBDARKNET_AMP
"""

import math
import os
import re
import subprocess
import sys
import tempfile
from ctypes import CDLL, RTLD_LOCAL, c_char_p, c_float, c_int, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

STEPS, BURN_IN, HIGH, LOW = 12, 4, .001, .00001
COMPLAINT = "Couldn't find policy cosine"


def rate(iteration):
    if iteration < BURN_IN:
        return HIGH * (iteration / BURN_IN) ** 4
    return LOW + (HIGH - LOW) * (1 + math.cos(math.pi * (iteration - 1) / STEPS)) / 2


def make(folder, keys=""):
    toyset.make(folder, net_keys="mixed_precision=1\n" + keys, max_batches=STEPS)
    cfg = folder / "toy.cfg"
    text = cfg.read_text().replace("policy=constant", "policy=cosine")
    cfg.write_text(text.replace("burn_in=10", "burn_in=%d" % BURN_IN))
    return cfg


def check_program(program, folder):
    """The first pass of fp16 is repeated until it finds a scale; that counts once."""
    make(folder, "seed=3")
    done = subprocess.run([program, "detector", "train", "toy.data", "toy.cfg"], cwd=folder,
                          capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == 0 and COMPLAINT not in text and "start-up search done" in text, text
    assert "learning rate: cosine, from 0.001 to 1e-05 in 12 iterations; the first 4 rise from 0" in text, text
    printed = re.findall(r"^(\d+): .* ([\d.]+) rate", text, re.M)
    assert printed == [(str(i), "%.6f" % rate(i)) for i in range(1, STEPS + 1)], printed


def child(way, library, plugin, cfg):
    """Trains with ctypes and prints what Darknet says of its rate; in the end after detaching."""
    darknet = CDLL(library, mode=RTLD_LOCAL)
    darknet.load_network.argtypes = [c_char_p, c_char_p, c_int]
    darknet.load_network.restype = c_void_p
    darknet.train_network_datum.argtypes = darknet.get_current_rate.argtypes = [c_void_p]
    darknet.train_network_datum.restype = darknet.get_current_rate.restype = c_float
    network = darknet.load_network(cfg.encode(), None, 0)
    amp = CDLL(plugin)
    amp.amp_attach.argtypes, amp.amp_detach.argtypes = [c_void_p, c_char_p], [c_void_p]
    if way == "called":
        assert amp.amp_attach(network, cfg.encode()) == 1
    for _ in range(STEPS):
        for _ in range(2):  # subdivisions
            darknet.train_network_datum(network)
        print("rate %.9g" % darknet.get_current_rate(network))
    amp.amp_detach(network)
    print("rate %.9g" % darknet.get_current_rate(network))
    sys.stdout.flush()
    os._exit(0)


def check_ctypes(way, library, plugin, folder):
    cfg = make(folder, "amp_dtype=fp32")  # the images are black: their gradients would not fit fp16
    preload = {"LD_PRELOAD": plugin} if way == "preloaded" else {}
    done = subprocess.run([sys.executable, "-B", __file__, way, library, plugin, "--cfg", str(cfg)],
                          env={**os.environ, **preload}, capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == 0 and (COMPLAINT in text) == (way == "called"), text
    rates = [float(word) for word in re.findall(r"^rate (\S+)", text, re.M)]
    expected = [rate(i) for i in range(1, STEPS + 1)] + [HIGH]
    assert len(rates) == len(expected), text
    for got, wanted in zip(rates, expected):
        assert abs(got - wanted) <= 1e-6 * wanted, (way, rates, expected)


def check_momentum(program, folder, keys):
    """onecycle changes the momentum (of Adam: B1) too: with momentum_min equal to it other weights come out."""
    weights = []
    for least in ".85", ".9":
        cfg = make(folder / least, "seed=5\nmomentum_min=%s\n%s" % (least, keys))
        cfg.write_text(cfg.read_text().replace("policy=cosine", "policy=onecycle").replace("burn_in=4\n", ""))
        subprocess.run([program, "detector", "train", "toy.data", "toy.cfg"], cwd=folder / least,
                       capture_output=True, check=True)
        weights.append((folder / least / "backup/toy_final.weights").read_bytes())
    assert weights[0] != weights[1]


def main():
    if sys.argv[4:5] == ["--cfg"]:
        child(*sys.argv[1:4], sys.argv[5])
    program, library, plugin = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as name:
        check_program(program, Path(name) / "program")
        for way in "preloaded", "called":
            check_ctypes(way, library, plugin, Path(name) / way)
        for keys in "", "adam=1":
            check_momentum(program, Path(name) / ("momentum" + keys), keys)


main()
