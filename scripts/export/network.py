"""What is exported: the network as `darknet amp plan --json` describes it, and its weights with batch-norm folded in.

It decides which networks are refused, and knows the order of Darknet's weights file from the description. It must not
know ONNX. Nothing but the arrays needs numpy, so that faults are named where it is missing.
"""

import json
import subprocess

RECURRENT = ("rnn", "gru", "lstm", "crnn")
HEADS = ("yolo", "region", "detection")
MATRICES = ("convolutional", "deconvolutional", "local", "connected")
# Give what the user wants to have, wherever they stand.
OUTPUTS = (*HEADS, "softmax", "logistic")


class Refused(Exception):
    pass


def name_of(layer):
    return f"layer {layer['index']} [{layer['type']}]"


def run(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        raise Refused(said[-1].removeprefix("error: ") if said else
                      f"{' '.join(map(str, words))}: exit status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


class Network:
    def __init__(self, darknet, cfg, weights):
        self.cfg, self.weights_path = cfg, weights
        self.plan = json.loads(run(darknet, "amp", "plan", cfg, weights, "--json", "--nogpu"))
        described = self.plan["network"]
        self.layers = described["layers"]
        self.width, self.height, self.channels = described["input"]
        self.inputs, self.resize = described["inputs"], described["resize"]
        self.bn_under_root = described["bn_under_root"]
        self.sidecar = self.plan["sidecar"] or {"left_fp16": []}
        for layer in self.layers:
            self.check(layer)
        absent = self.plan["first_absent"]
        if absent is not None:
            raise Refused(f"weights file {weights} ends before {name_of(self.layers[absent])}: a part of the network; "
                          "give the weights of the whole")

    def fault(self, layer, why):
        raise Refused(f"{self.cfg}:{layer['line']}: {name_of(layer)}: {why}")

    def check(self, layer):
        """Refuses what has no place in a file that is called once for each batch."""
        if layer["type"] in RECURRENT:
            self.fault(layer, "hands its state from one call to the next; networks with such layers are not exported")
        if layer["type"] == "iseg":
            self.fault(layer, "is not exported: Darknet reads truths there in inference too, and crashes without")
        if layer.get("binary"):
            self.fault(layer, "binary and xnor are not exported")
        if layer["not_loaded"]:
            self.fault(layer, "dontload, dontloadscales and numload leave weights that are in no file; remove them")
        if layer["type"] == "detection" and layer["coords"] != 4:
            self.fault(layer, f"coords={layer['coords']}: allowed: 4")
        if layer["type"] == "region" and layer["tree"]:
            self.fault(layer, "tree= is not exported: Darknet computes one thing on a CPU and another on a GPU")
        if layer["type"] == "reorg" and layer["flatten"] and layer["extra"]:
            self.fault(layer, "flatten=1 with extra= is not exported")

    def shape(self, index):
        """(channels, height, width) of a layer's output, -1: of the input. What is no image is one of a pixel."""
        if index < 0:
            image = self.channels * self.height * self.width == self.inputs
            return (self.channels, self.height, self.width) if image else (self.inputs, 1, 1)
        width, height, channels = self.layers[index]["output"]
        return (channels, height, width) if width else (self.layers[index]["outputs"], 1, 1)

    def outputs(self):
        """Layers whose output is the network's: the heads of a detector."""
        if self.heads():
            return self.heads()
        last = max((layer["index"] for layer in self.layers if layer["type"] != "cost"), default=0)
        return [layer for layer in self.layers if layer["type"] in OUTPUTS or layer["index"] == last]

    def heads(self):
        return [layer for layer in self.layers if layer["type"] in HEADS]

    def classes(self):
        """Of the detector, or of the classifier; 0: no such number."""
        outputs = self.outputs()
        counts = {layer["classes"] for layer in outputs if "classes" in layer}
        if not counts and len(outputs) == 1:
            counts = {layer["outputs"] for layer in outputs if layer["type"] == "softmax"}
        return counts.pop() if len(counts) == 1 else 0

    # ---- weights ----

    def arrays(self):
        """(layer, {name: numbers}) in the order of the file, whose size `amp plan` has checked."""
        import numpy
        values = numpy.memmap(self.weights_path, "<u1", "r")
        major, minor = (int(number) for number in numpy.frombuffer(values[:8].tobytes(), "<i4"))
        start = 20 if major * 10 + minor >= 2 and major < 1000 and minor < 1000 else 16
        self.transposed = major > 1000 or minor > 1000
        for layer in self.layers:
            found = {}
            for name, count in layer["weights"]:
                found[name] = numpy.frombuffer(values, "<f4", count, start)
                if not numpy.isfinite(found[name]).all():
                    raise Refused(f"weights file {self.weights_path}: {name} of {name_of(layer)} are not finite")
                start += 4 * count
            yield layer, found

    def factors(self, layer, found):
        """What batch-norm makes of a layer's sums: (factor, bias) by filter, in double precision."""
        import numpy
        bias = found["biases"].astype("f8") if "biases" in found else 0.
        if "scales" not in found:
            return None, bias
        mean, variance, scale = (found[name].astype("f8")
                                 for name in ("rolling means", "rolling variances", "scales"))
        if (variance < 0).any():
            raise Refused(f"weights file {self.weights_path}: rolling variances of {name_of(layer)} are negative")
        root = numpy.sqrt(variance + 1e-5) if self.bn_under_root else numpy.sqrt(variance) + 1e-6
        return scale / root, bias - mean * scale / root

    def oriented(self, layer, weights):
        """Weights as they are used, filters first; a deconvolution's input channels come first."""
        if layer["type"] == "connected":
            inputs, outputs = len(weights) // layer["filters"], layer["filters"]
            return weights.reshape(inputs, outputs).T if self.transposed else weights.reshape(outputs, inputs)
        size, filters = layer["size"], layer["filters"]
        channels = self.shape(layer["reads"][0])[0]
        if layer["type"] == "deconvolutional":
            return weights.reshape(channels, filters, size, size)
        if layer["type"] == "local":
            places = layer["outputs"] // filters
            return weights.reshape(places, filters, channels * size * size)
        inputs = channels // layer["groups"]
        if layer["flipped"]:
            weights = weights.reshape(inputs * size * size, filters).T
        return weights.reshape(filters, inputs, size, size)

    def folded(self):
        """{index: (weights, biases)} in FP32; of a [batchnorm] factors in the place of weights."""
        import numpy
        result = {}
        for layer, found in self.arrays():
            if not found:
                continue
            with numpy.errstate(all="ignore"):
                factor, bias = self.factors(layer, found)
                if layer["type"] == "batchnorm":
                    weights = factor
                else:
                    weights = self.oriented(layer, found["weights"])
                    if factor is not None:
                        by_filter = [1] * weights.ndim
                        by_filter[layer["type"] == "deconvolutional"] = -1
                        weights = weights * factor.reshape(by_filter)
                weights, bias = numpy.asarray(weights, "<f4"), numpy.asarray(bias, "<f4")
            if not numpy.isfinite(weights).all() or not numpy.isfinite(bias).all():
                raise Refused(f"weights file {self.weights_path}: {name_of(layer)}: weights with batch-norm folded in "
                              "are beyond FP32")
            result[layer["index"]] = weights, bias
        return result


class Tree:
    """Darknet's file of a class tree: "name parent" a line; children of a parent stand together."""

    def __init__(self, path, classes):
        self.parents, self.groups = [], []
        try:
            lines = open(path, encoding="utf-8", errors="surrogateescape").read().splitlines()
            self.parents = [int(line.split()[1]) for line in lines if line.strip()]
        except (OSError, IndexError, ValueError) as error:
            raise Refused(f"{path}: cannot be read as a class tree: {error}") from None
        for index, parent in enumerate(self.parents):
            if not -1 <= parent < index:
                raise Refused(f"{path}:{index + 1}: parent {parent}: allowed: -1, or an earlier line, from 0")
            if index and parent == self.parents[index - 1]:
                self.groups[-1] += 1
            else:
                self.groups.append(1)
        if len(self.parents) != classes:
            raise Refused(f"{path}: has {len(self.parents)} classes, the network {classes}")

    def depth(self):
        depths = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return max(depths)

    def leaves(self):
        inner = set(self.parents)
        return [index not in inner for index in range(len(self.parents))]
