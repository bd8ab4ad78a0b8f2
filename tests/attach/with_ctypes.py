"""Python programs that load Darknet with ctypes, as Darknet's own python/darknet.py does.

usage: with_ctypes.py LIBDARKNET LIBDARKNET_AMP WAY...

Starts a Python for each way: `preloaded`, with the plugin in LD_PRELOAD, where load_network reaches
it; `called`, which loads it afterwards and calls amp_attach, and which must refuse a cfg with a
seed: Darknet's random numbers do not pass through the plugin there. Darknet is loaded with
RTLD_LOCAL, so no search order of the dynamic linker contains its functions.
"""

import os
import subprocess
import sys
import tempfile
from ctypes import CDLL, RTLD_LOCAL, c_char_p, c_float, c_int, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def load(library, cfg):
    darknet = CDLL(library, mode=RTLD_LOCAL)
    darknet.load_network.argtypes = [c_char_p, c_char_p, c_int]
    darknet.load_network.restype = c_void_p
    network = darknet.load_network(cfg.encode(), None, 0)
    assert network
    return network


def preloaded(library, plugin, cfg):
    load(library, cfg)
    assert CDLL(plugin).amp_attach_count() == 1


def called(library, plugin, cfg):
    network = load(library, cfg)
    amp = CDLL(plugin, mode=RTLD_LOCAL)
    amp.amp_attach.argtypes = [c_void_p, c_char_p]
    assert amp.amp_attach_count() == 0
    assert amp.amp_attach(network, cfg.encode()) == 0  # the cfg does not ask for mixed precision
    assert amp.amp_attach_count() == 1


def run(way, library, plugin, cfg, preload, what=None, spins=None, **options):
    """spins: for GOMP_SPINCOUNT; None: not set."""
    libraries = preload + " " + plugin if way == "preloaded" else preload
    env = {name: value for name, value in os.environ.items()
           if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return subprocess.run([sys.executable, "-B", __file__, library, plugin, what or way, "--cfg", cfg],
                          env={**env, "LD_PRELOAD": libraries, **({"GOMP_SPINCOUNT": spins} if spins else {})},
                          **options)


def check_seed(way, library, plugin, preload, folder):
    cfg = str(toyset.make(folder, net_keys="seed=7") / "toy.cfg")
    done = run(way, library, plugin, cfg, preload, capture_output=True, text=True)
    refused = way == "called"
    assert done.returncode == (1 if refused else 0), (way, done.returncode, done.stderr)
    assert ("darknet-amp: seed: " in done.stderr) == refused, (way, done.stderr)


def saves(library, plugin, cfg):
    """Python calls Darknet's functions directly, so it calls the plugin's in their place."""
    network = load(library, cfg)
    amp = CDLL(plugin)
    for function in (amp.amp_attach, amp.amp_save_weights, amp.amp_load_weights):
        function.argtypes = [c_void_p, c_char_p]
    amp.amp_attach(network, cfg.encode())
    amp.amp_save_weights(network, (cfg + ".backup").encode())
    assert os.path.exists(cfg + ".backup.amp")
    amp.amp_load_weights(network, (cfg + ".backup").encode())


def check_sidecar(way, library, plugin, preload, folder):
    cfg = str(toyset.make(folder, net_keys="mixed_precision=1") / "toy.cfg")
    done = run(way, library, plugin, cfg, preload, what="saves", capture_output=True, text=True)
    assert done.returncode == 0 and ".amp" not in done.stderr, (way, done.returncode, done.stderr)
    # It is too late for the plugin to say how threads wait, so it tells the user, once.
    assert done.stderr.count("GOMP_SPINCOUNT=") == 1, (way, done.stderr)
    done = run(way, library, plugin, cfg, preload, what="saves", spins="5", capture_output=True, text=True)
    assert done.returncode == 0 and "GOMP_SPINCOUNT" not in done.stderr, (way, done.stderr)


RECURRENT = """[net]
batch=16
inputs=4
mixed_precision=1
[rnn]
output=3
activation=tanh
[connected]
output=2
activation=linear
"""


def predicts(library, plugin, cfg):
    network = load(library, cfg)
    amp, darknet = CDLL(plugin), CDLL(library, mode=RTLD_LOCAL)
    amp.amp_attach.argtypes = [c_void_p, c_char_p]
    amp.amp_attach(network, cfg.encode())
    darknet.network_predict.argtypes = [c_void_p, c_void_p]
    for _ in range(2):
        darknet.network_predict(network, (c_float * 64)(*[.1] * 64))


def check_products(way, library, plugin, preload, folder):
    """Darknet's calls inside a recurrent layer reach the plugin, or a line says once that they do not."""
    folder.mkdir()
    cfg = folder / "recurrent.cfg"
    cfg.write_text(RECURRENT)
    done = run(way, library, plugin, str(cfg), preload, what="predicts", capture_output=True, text=True)
    assert done.returncode == 0 and "operands of its products" in done.stderr, (way, done.stderr)
    said = done.stderr.count("the products of recurrent layers stay in FP32")
    assert said == (way == "called"), (way, done.stderr)


def main():
    library, plugin, ways = sys.argv[1], sys.argv[2], sys.argv[3:]
    if "--cfg" in ways:
        {"preloaded": preloaded, "called": called, "saves": saves,
         "predicts": predicts}[ways[0]](library, plugin, ways[2])
        return
    assert ways
    preload = os.environ.get("LD_PRELOAD", "")
    with tempfile.TemporaryDirectory() as root:
        cfg = str(toyset.make(Path(root) / "set") / "toy.cfg")
        for way in ways:
            run(way, library, plugin, cfg, preload, check=True)
            check_seed(way, library, plugin, preload, Path(root) / ("seeded-" + way))
            check_sidecar(way, library, plugin, preload, Path(root) / ("saved-" + way))
            check_products(way, library, plugin, preload, Path(root) / ("recurrent-" + way))


main()
