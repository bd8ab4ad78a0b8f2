"""A user's own Darknet checkout, built by its own Makefile (-Ofast, static) with our LDFLAGS.

usage: checkout.py DARKNET_SOURCE AMP_LDFLAGS BUILD WORK [MAKE_ARGUMENT...]

BUILD is the plugin's build folder, WORK keeps the built checkout between runs, the rest goes to
make. The program must train with the plugin attached; and without a key of ours, fixed_training
linked with the plugin must write the same weights, byte for byte, as linked without it (built with
GPU=1 and without the plugin, Darknet needs a GPU: without one the first half is tested).
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset
from running import run, train_fixed


def copy_sources(source, work):
    for name in ("src", "include", "examples"):
        shutil.copytree(source / name, work / name, dirs_exist_ok=True)
    shutil.copy2(source / "Makefile", work)


def output_of(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def link_fixed_training(work, settings, ldflags, name):
    """fixed_training as the Makefile would link a program; returns its path."""
    flags = ["-Ofast", "-Iinclude"]
    if "OPENMP=1" in settings:
        flags.append("-fopenmp")
    for kind in ("GPU", "CUDNN"):
        if kind + "=1" in settings:
            flags += ["-D" + kind, "-I/usr/local/cuda/include"]
    source = Path(__file__).with_name("fixed_training.c")
    run(["gcc", *flags, source, "libdarknet.a", "-o", name, *shlex.split(ldflags), "libdarknet.a"],
        cwd=work)
    return work / name


def stock_ldflags(amp):
    """What the Makefile links by itself: our LDFLAGS without the plugin."""
    return shlex.join(word for word in shlex.split(amp)
                      if not word.startswith("-Wl,--wrap=") and not word.endswith(".a"))


def main():
    source, amp_ldflags, build, work = (Path(argument) for argument in sys.argv[1:5])
    settings = sys.argv[5:]
    work.mkdir(parents=True, exist_ok=True)
    copy_sources(source, work)
    ldflags = output_of([str(amp_ldflags), "--build", str(build)])
    for product in ("darknet", "libdarknet.so"):
        (work / product).unlink(missing_ok=True)
    run(["make", "-j2", *settings, "LDFLAGS=" + ldflags], cwd=work)
    with tempfile.TemporaryDirectory() as root:
        # seed: the plugin also waits for the loader threads at exit; Darknet alone does not, and
        # crashes now and then.
        folder = toyset.make(Path(root) / "seeded", net_keys="seed=1")
        run([work / "darknet", "detector", "train", folder / "toy.data", folder / "toy.cfg"],
            cwd=folder, attached=1)
        assert toyset.read_weights(folder / "backup" / "toy_final.weights")
        if "GPU=1" in settings and not Path("/dev/nvidia0").exists():
            print("SKIPPED the comparison with the program without the plugin: no GPU")
            return
        folder = toyset.make(Path(root) / "set")
        cfg = folder / "toy.cfg"
        stock = link_fixed_training(work, settings, stock_ldflags(ldflags), "fixed_stock")
        amp = link_fixed_training(work, settings, ldflags, "fixed_amp")
        expected = train_fixed(stock, cfg, folder / "stock.weights", attached=0)
        assert train_fixed(amp, cfg, folder / "amp.weights", attached=1) == expected


main()
