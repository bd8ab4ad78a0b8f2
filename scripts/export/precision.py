"""Which layers of an exported network compute in FP16. What holds a layer in FP32, and why, is kept for the report."""

import re

from network import MATRICES, Refused

# They pass on what they get, in its precision; all others but matrices are FP32.
PASSING = ("maxpool", "avgpool", "route", "shortcut", "upsample", "reorg", "dropout", "activation")
LARGEST = 65504
# What FP16 may take from a filter: its own rounding takes 2^-12; more is lost below 6e-5.
MAY_LOSE = 2**-8


def read_layers(text, count):
    """{3, 7, 8, 9} of "3,7-9"."""
    found = set()
    for part in text.split(",") if text is not None else ():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first = int(match[1]) if match else count
        last = int(match[2] or first) if match else count
        if not first <= last < count:
            raise Refused(f"--keep {text}: {part}: allowed: layers 0 to {count - 1}, as 3,7-9")
        found |= set(range(first, last + 1))
    return found


def misfit(weights, biases):
    """Why FP16 cannot hold them, or None."""
    import numpy
    for what, array in (("weights", weights), ("biases", biases)):
        largest = float(abs(array).max(initial=0))
        if largest > LARGEST:
            return f"its {what}, with batch-norm folded in, reach {largest:.3g}; FP16 ends at {LARGEST}"
    rows = weights.reshape(len(weights), -1)
    with numpy.errstate(all="ignore"):
        lost = numpy.linalg.norm(rows - rows.astype("f2").astype("f4"), axis=1)
    size = numpy.linalg.norm(rows.astype("f8"), axis=1)
    bad = numpy.flatnonzero(lost > MAY_LOSE * size)
    return bad.size and (f"{bad.size} of its {len(rows)} rows of weights, with batch-norm folded in, are too small for "
                         "FP16") or None


def choose(network, weights, half, keep):
    """({index} in FP16, {index: why not}) of a network with or without --half."""
    chosen, kept = set(), {}
    for layer in network.layers if half else ():
        index, kind = layer["index"], layer["type"]
        if kind not in MATRICES and kind not in PASSING:
            continue
        if layer["fp32"]:
            kept[index] = "mixed_precision=0 in its section"
        elif index in network.sidecar["left_fp16"]:
            kept[index] = "it left FP16 in training, by the sidecar"
        elif index in keep:
            kept[index] = "--keep"
        elif kind in MATRICES and (why := misfit(*weights[index])):
            kept[index] = why
        elif kind in MATRICES or all(source in chosen for source in layer["reads"]):
            chosen.add(index)
    return chosen, kept
