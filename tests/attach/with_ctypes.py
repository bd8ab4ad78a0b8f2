"""Python programs that load Darknet with ctypes, as Darknet's own python/darknet.py does.

usage: with_ctypes.py LIBDARKNET LIBDARKNET_AMP

Run by itself it starts Pythons: one with the plugin in LD_PRELOAD, where load_network reaches it,
and one that loads it afterwards and calls amp_attach, which must refuse a cfg with a seed: Darknet's
random numbers do not pass through the plugin there. Darknet is loaded with RTLD_LOCAL, so no
search order of the dynamic linker contains its functions.
"""

import os
import subprocess
import sys
import tempfile
from ctypes import CDLL, RTLD_LOCAL, c_char_p, c_int, c_void_p
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


def check_seed(library, plugin, preload, folder):
    cfg = str(toyset.make(folder, net_keys="seed=7") / "toy.cfg")
    for way, libraries, status in (("preloaded", preload + " " + plugin, 0), ("called", preload, 1)):
        done = subprocess.run([sys.executable, "-B", __file__, library, plugin, way, cfg],
                              env=dict(os.environ, LD_PRELOAD=libraries), capture_output=True,
                              text=True)
        assert done.returncode == status, (way, done.returncode, done.stderr)
        assert ("darknet-amp: seed: " in done.stderr) == (status == 1), (way, done.stderr)


def main():
    library, plugin = sys.argv[1:3]
    if len(sys.argv) > 3:
        {"preloaded": preloaded, "called": called}[sys.argv[3]](library, plugin, sys.argv[4])
        return
    preload = os.environ.get("LD_PRELOAD", "")
    with tempfile.TemporaryDirectory() as root:
        cfg = str(toyset.make(Path(root) / "set") / "toy.cfg")
        for way, libraries in (("preloaded", preload + " " + plugin), ("called", preload)):
            subprocess.run([sys.executable, "-B", __file__, library, plugin, way, cfg], check=True,
                           env=dict(os.environ, LD_PRELOAD=libraries))
        check_seed(library, plugin, preload, Path(root) / "seeded")


main()
