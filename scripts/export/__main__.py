"""Writes a trained network of Darknet's as ONNX; `darknet amp export` starts it. docs/export.md says what the file is.

Status 0: written, and the same as Darknet; 1: not written; 2: written, but ONNX Runtime makes something else of it.
"""

import argparse
import importlib.util
import os
import secrets
import subprocess
import sys
from contextlib import suppress

from network import Network, Refused, name_of
from precision import choose, read_layers


NMS_DEFAULTS = {"thresh": .25, "iou": .45}


def read_arguments():
    """darknet has checked them and has their help."""
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("darknet", "keep", "names", "image"):
        parser.add_argument(f"--{name}")
    for name in NMS_DEFAULTS:
        parser.add_argument(f"--{name}", type=float)
    for name in ("half", "boxes", "raw", "nms"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("cfg", "weights", "onnx"):
        parser.add_argument(name)
    return parser.parse_args()


def check_options(options, network):
    if not options.onnx.endswith(".onnx"):  # the weights may stand there by mistake
        raise Refused(f"{options.onnx}: allowed: a name that ends in .onnx")
    if options.raw and (options.boxes or options.nms):
        raise Refused("--raw leaves out what --boxes and --nms need: give one of them")
    if not network.heads():
        for name in ("boxes", "raw", "nms"):
            if getattr(options, name):
                raise Refused(f"--{name}: {options.cfg} is no detector")
    elif not network.classes():
        raise Refused(f"{options.cfg}: its heads have different numbers of classes")
    if options.keep is not None and not options.half:
        raise Refused("--keep means something with --half only")
    for name, default in NMS_DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif not options.nms:
            raise Refused(f"--{name} means something with --nms only")


def read_names(options, network):
    if not options.names:
        return None
    try:
        names = open(options.names, encoding="utf-8").read().splitlines()
    except (OSError, ValueError) as error:
        raise Refused(f"--names {options.names}: cannot be read: {error}") from None
    if network.classes() and len(names) != network.classes():
        raise Refused(f"--names {options.names}: has {len(names)} names, the network {network.classes()} classes")
    return names


def write_whole(path, data):
    """Under another name first, so that nobody meets a part of it."""
    part = f"{path}.part-{secrets.token_hex(8)}"
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def tell_kept(network, kept):
    for index, why in kept.items():
        print(f"{name_of(network.layers[index])} stays in FP32: {why}")


def tell_comparison(options, network, data):
    """Whether the file is what Darknet computes."""
    if not importlib.util.find_spec("onnxruntime"):
        print("not compared with Darknet: Python's package onnxruntime is missing (pip install onnxruntime)",
              file=sys.stderr)
        return True
    from compare import compare
    try:
        said, same = compare(options.darknet, network, data, options)
    except Refused as error:
        print(f"error: {options.onnx} was written, but not compared: {error}", file=sys.stderr)
        return False
    cure = "; --keep LAYERS holds layers in FP32" if options.half else ""
    print(said if same else f"error: {options.onnx} was written, but is not the same: {said}{cure}",
          file=sys.stdout if same else sys.stderr)
    return same


def export(options):
    network = Network(options.darknet, options.cfg, options.weights)
    check_options(options, network)
    names, keep = read_names(options, network), read_layers(options.keep, len(network.layers))
    from model import make_model, metadata
    weights = network.folded()
    in_half, kept = choose(network, weights, options.half, keep)
    tell_kept(network, kept)
    versions = subprocess.run([options.darknet, "amp", "--version"], stdout=subprocess.PIPE, text=True).stdout
    described = metadata(network, options, kept, versions.splitlines()[:2], names)
    data = make_model(network, weights, in_half, options, described)
    write_whole(options.onnx, data)
    count = f", {len(in_half)} of {len(network.layers)} layers in FP16" if options.half else ""
    print(f"{options.onnx}: {len(data) / 2**20:.1f} MiB{count}")
    return 0 if tell_comparison(options, network, data) else 2


def main():
    missing = [name for name in ("numpy", "onnx") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(f"error: Python's package {missing[0]} is missing: pip install onnx onnxruntime")
    try:
        return export(read_arguments())
    except Refused as error:
        sys.exit(f"error: {error}")


sys.exit(main())
