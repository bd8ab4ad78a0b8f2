"""ONNX nodes for each layer of Darknet's. It decides what a layer becomes, and where types change; heads.py has what
stands behind the layers.

Every tensor has the batch first, whose size is open. Images are (batch, channels, height, width).
"""

import numpy
from network import HEADS
from onnx import TensorProto, helper, numpy_helper

# Their readers read what they read: heads.py has what a head makes of it.
PASSED = (*HEADS, "dropout", "cost")
ONNX_TYPES = {False: TensorProto.FLOAT, True: TensorProto.FLOAT16}
NUMPY_TYPES = {False: "f4", True: "f2"}


class Nodes:
    """A list of nodes and constants; every node gives one tensor, and is called as that is."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def add(self, op, inputs, name, outputs=None, **attributes):
        names = outputs or [name]
        self.nodes.append(helper.make_node(op, inputs, names, name=name, **attributes))
        return names if outputs else name

    def constant(self, array, name):
        self.constants[name] = numpy_helper.from_array(numpy.ascontiguousarray(array), name)
        return name

    def scalar(self, value, half=False):
        return self.constant(numpy.array(value, NUMPY_TYPES[half]), f"{'half' if half else 'number'}_{value:.9g}")

    def ints(self, *values):
        return self.constant(numpy.array(values, "i8"), "ints_" + "_".join(map(str, values)))

    def reshape(self, tensor, shape, name):
        """The batch stays as it is: 0 in ONNX."""
        return self.add("Reshape", [tensor, self.ints(0, *shape)], name)

    def slice(self, tensor, axis, first, end, name, step=1):
        words = [tensor, *(self.ints(number) for number in (first, end, axis, step))]
        return self.add("Slice", words, name)

    def times(self, tensor, factor, name, half=False):
        return tensor if factor == 1 else self.add("Mul", [tensor, self.scalar(factor, half)], name)

    def shares(self, tensor, name, temperature=1):
        """Softmax over the last axis."""
        return self.add("Softmax", [self.times(tensor, 1 / temperature, f"{name}/cooled")], name, axis=-1)

    def tree_shares(self, tensor, tree, name, temperature=1):
        """Over each group of classes of the last axis."""
        tensor = self.times(tensor, 1 / temperature, f"{name}/cooled")
        names = [f"{name}/group_{k}" for k in range(len(tree.groups))]
        parts = [tensor] if len(names) == 1 else self.add(
            "Split", [tensor, self.ints(*tree.groups)], f"{name}/groups", names, axis=-1)
        soft = [self.add("Softmax", [part], f"{name}/soft_{k}", axis=-1) for k, part in enumerate(parts)]
        return self.add("Concat", soft, name, axis=-1)

    def absolute(self, tensor, tree, name):
        """From probabilities in their groups to those of the classes: times all parents', level by level. -1 stands for
        the 1 behind the last class."""
        parents = self.constant(numpy.array(tree.parents, "i8") % (len(tree.parents) + 1), f"{name}/parents")
        result = tensor
        for level in range(tree.depth()):
            pads = self.ints(*[0] * 5, 1)
            wide = self.add("Pad", [result, pads, self.scalar(1)], f"{name}/wide_{level}")
            above = self.add("Gather", [wide, parents], f"{name}/above_{level}", axis=2)
            result = self.add("Mul", [tensor, above], f"{name}/level_{level}")
        return result

    def clip(self, tensor, low, high, name, half):
        return self.add("Clip", [tensor, self.scalar(low, half), self.scalar(high, half)], name)

    def two_slopes(self, x, low, high, inner, outer, offset, name, half):
        """inner * clip(x) + offset, and outer * x beyond the limits."""
        inside = self.clip(x, low, high, f"{name}/inside", half)
        beyond = self.times(self.add("Sub", [x, inside], f"{name}/beyond"), outer, f"{name}/outer", half)
        inside = self.times(inside, inner, f"{name}/inner", half)
        if offset:
            inside = self.add("Add", [inside, self.scalar(offset, half)], f"{name}/offset")
        return self.add("Add", [inside, beyond], name)

    def activate(self, x, kind, name, half):
        """As src/activations.h has them."""
        simple = {"logistic": ("Sigmoid", {}), "relu": ("Relu", {}), "tanh": ("Tanh", {}), "elu": ("Elu", {}),
                  "leaky": ("LeakyRelu", {"alpha": .1}), "relie": ("LeakyRelu", {"alpha": .01}),
                  "selu": ("Selu", {"alpha": 1.6732, "gamma": 1.0507})}
        if kind in simple:
            return self.add(simple[kind][0], [x], name, **simple[kind][1])
        if kind == "hardtan":
            return self.clip(x, -1, 1, name, half)
        if kind == "lhtan":
            return self.two_slopes(x, 0, 1, 1, .001, 0, name, half)
        if kind == "plse":
            return self.two_slopes(x, -4, 4, .125, .01, .5, name, half)
        if kind == "ramp":
            slope = self.times(x, .1, f"{name}/slope", half)
            return self.add("Add", [self.add("Relu", [x], f"{name}/relu"), slope], name)
        if kind == "loggy":
            twice = self.times(self.add("Sigmoid", [x], f"{name}/sigmoid"), 2, f"{name}/twice", half)
            return self.add("Sub", [twice, self.scalar(1, half)], name)
        if kind == "stair":  # floor(x / 2), and a slope of 1 where floor(x) is odd
            floor = self.add("Floor", [x], f"{name}/floor")
            half_way = self.add("Floor", [self.times(x, .5, f"{name}/half", half)], f"{name}/stairs")
            odd = self.add("Sub", [floor, self.times(half_way, 2, f"{name}/even", half)], f"{name}/odd")
            slope = self.add("Mul", [odd, self.add("Sub", [x, floor], f"{name}/above")], f"{name}/slope")
            return self.add("Add", [half_way, slope], name)
        gate = {"mish": lambda: self.add("Tanh", [self.add("Softplus", [x], f"{name}/softplus")], f"{name}/tanh"),
                "swish": lambda: self.add("Sigmoid", [x], f"{name}/sigmoid")}[kind]()
        return self.add("Mul", [x, gate], name)


class Layers(Nodes):
    """The layers of a network. in_half: those that give FP16."""

    def __init__(self, network, weights, in_half, trees):
        super().__init__()
        self.network, self.weights, self.half, self.trees = network, weights, in_half, trees
        self.tensors = {-1: ("images", False)}  # by layer: name, and whether it is (batch, values)
        self.made = {}  # the same in another type or shape
        if network.shape(-1) == (network.inputs, 1, 1):
            self.tensors[-1] = ("images", True)
        for layer in network.layers:
            self.add_layer(layer)

    def is_half(self, index):
        return index in self.half

    def read(self, index, half=False, flat=False):
        """A layer's output in this type and shape; casts and reshapes are made once."""
        name, is_flat = self.tensors[index]
        for kind, wanted, have in (("half" if half else "single", half, self.is_half(index)), ("flat", flat, is_flat)):
            if wanted == have:
                continue
            key = name, kind, wanted
            if key not in self.made and kind != "flat":
                self.made[key] = self.add("Cast", [name], f"{name}/{kind}", to=ONNX_TYPES[half])
            elif key not in self.made:
                shape = (-1,) if flat else self.network.shape(index)
                self.made[key] = self.reshape(name, shape, f"{name}/{'flat' if flat else 'image'}")
            name = self.made[key]
        return name

    def typed(self, array, name, half):
        return self.constant(array.astype(NUMPY_TYPES[half]), name)

    def add_layer(self, layer):
        index, name, half = layer["index"], f"layer_{layer['index']}", self.is_half(layer["index"])
        if layer["type"] in PASSED:
            source = layer["reads"][0]
            self.tensors[index] = self.tensors[source]
            if self.is_half(source):
                self.half.add(index)
            return
        made = getattr(self, layer["type"])(layer, name, half)
        flat = made.endswith("/values")
        if layer["activation"] != "linear":
            made = self.activate(made, layer["activation"], f"{name}/activated", half)
        self.tensors[index] = made, flat

    # ---- with weights ----

    def pair(self, layer, half):
        weights, biases = self.weights[layer["index"]]
        name = f"layer_{layer['index']}"
        return [self.typed(weights, f"{name}.weights", half), self.typed(biases, f"{name}.biases", half)]

    def convolutional(self, layer, name, half):
        return self.add("Conv", [self.read(layer["reads"][0], half), *self.pair(layer, half)], name,
                        kernel_shape=[layer["size"]] * 2, strides=[layer["stride"]] * 2, group=layer["groups"],
                        pads=[layer["padding"]] * 4)

    def deconvolutional(self, layer, name, half):
        return self.add("ConvTranspose", [self.read(layer["reads"][0], half), *self.pair(layer, half)], name,
                        kernel_shape=[layer["size"]] * 2, strides=[layer["stride"]] * 2, pads=[layer["padding"]] * 4)

    def connected(self, layer, name, half):
        return self.add("Gemm", [self.read(layer["reads"][0], half, flat=True), *self.pair(layer, half)],
                        f"{name}/values", transB=1)

    def local(self, layer, name, half):
        """A convolution that copies what each window sees, then a matrix for each place."""
        source, size = layer["reads"][0], layer["size"]
        channels, (filters, height, width) = self.network.shape(source)[0], self.network.shape(layer["index"])
        weights, biases = self.weights[layer["index"]]
        copies = numpy.tile(numpy.eye(size * size), (channels, 1)).reshape(-1, 1, size, size)
        seen = self.add("Conv", [self.read(source, half), self.typed(copies, f"{name}.windows", half)],
                        f"{name}/windows", kernel_shape=[size] * 2, strides=[layer["stride"]] * 2, group=channels,
                        pads=[layer["padding"]] * 4)
        seen = self.reshape(seen, (channels * size * size, height * width), f"{name}/places")
        seen = self.add("Transpose", [seen], f"{name}/by_place", perm=[2, 0, 1])
        made = self.add("MatMul", [seen, self.typed(weights.transpose(0, 2, 1), f"{name}.weights", half)],
                        f"{name}/products")
        made = self.reshape(self.add("Transpose", [made], f"{name}/back", perm=[1, 2, 0]), (filters, height, width),
                            f"{name}/image")
        return self.add("Add", [made, self.typed(biases.reshape(1, filters, height, width), f"{name}.biases", half)],
                        name)

    def batchnorm(self, layer, name, half):
        factors, biases = (self.typed(array.reshape(1, -1, 1, 1), f"{name}.{what}", half)
                           for array, what in zip(self.weights[layer["index"]], ("factors", "biases")))
        made = self.add("Mul", [self.read(layer["reads"][0], half), factors], f"{name}/scaled")
        return self.add("Add", [made, biases], name)

    # ---- without ----

    def activation(self, layer, name, half):
        return self.add("Identity", [self.read(layer["reads"][0], half)], name)

    def maxpool(self, layer, name, half):
        """Half of the padding, rounded down, comes before; behind it as much as the last window needs."""
        pads = []
        for made, given in zip(self.network.shape(layer["index"])[1:], self.network.shape(layer["reads"][0])[1:]):
            before = layer["padding"] // 2
            pads.append((before, max(0, (made - 1) * layer["stride"] + layer["size"] - given - before)))
        return self.add("MaxPool", [self.read(layer["reads"][0], half)], name, kernel_shape=[layer["size"]] * 2,
                        strides=[layer["stride"]] * 2, pads=[side for both in zip(*pads) for side in both])

    def avgpool(self, layer, name, half):
        return self.add("GlobalAveragePool", [self.read(layer["reads"][0], half)], name)

    def enlarged(self, tensor, times, name):
        scales = self.constant(numpy.array([1, 1, times, times], "f4"), f"scales_{times}")
        return self.add("Resize", [tensor, "", scales], name, mode="nearest", nearest_mode="floor",
                        coordinate_transformation_mode="asymmetric")

    def upsample(self, layer, name, half):
        tensor, stride = self.read(layer["reads"][0], half), layer["stride"]
        if not layer["reverse"]:
            return self.times(self.enlarged(tensor, stride, f"{name}/enlarged"), layer["scale"], name, half)
        mean = self.add("AveragePool", [tensor], f"{name}/mean", kernel_shape=[stride] * 2, strides=[stride] * 2)
        return self.times(mean, layer["scale"] * stride**2, name, half)

    def reorg(self, layer, name, half):
        """Darknet's order of elements is that of its memory, not of the image."""
        source, s = layer["reads"][0], layer["stride"]
        (c, h, w), made = self.network.shape(source), self.network.shape(layer["index"])
        if layer["extra"]:
            pads = self.ints(0, 0, 0, layer["extra"])
            return self.add("Pad", [self.read(source, half, flat=True), pads, self.scalar(0, half)], f"{name}/values")
        if layer["flatten"]:
            shape, order = ((h * w, c) if layer["reverse"] else (c, h * w)), [0, 2, 1]
        elif layer["reverse"]:
            shape, order = (s, s, c // s**2, h, w), [0, 3, 4, 1, 5, 2]
        else:
            shape, order = (c // s**2, h, s, w, s), [0, 3, 5, 1, 2, 4]
        tensor = self.reshape(self.read(source, half), shape, f"{name}/memory")
        return self.reshape(self.add("Transpose", [tensor], f"{name}/order", perm=order), made, name)

    def route(self, layer, name, half):
        flat, parts = not layer["output"][0], []
        for k, source in enumerate(layer["reads"]):
            tensor = self.read(source, half, flat)
            if layer["groups"] > 1:
                part = self.network.shape(source)[0] // layer["groups"]
                first = part * layer["group_id"]
                tensor = self.slice(tensor, 1, first, first + part, f"{name}/part_{k}")
            parts.append(tensor)
        return self.add("Concat" if len(parts) > 1 else "Identity", parts, f"{name}/values" if flat else name,
                        **({"axis": 1} if len(parts) > 1 else {}))

    def shortcut(self, layer, name, half):
        """alpha * x + beta * the other, where both have elements; x elsewhere."""
        first, other = layer["reads"]
        x, added = self.read(first, half), self.times(self.read(other, half), layer["beta"], f"{name}/beta", half)
        (c, h, w), (c2, h2, w2) = self.network.shape(first), self.network.shape(other)
        if (c, h, w) == (c2, h2, w2):
            return self.add("Add", [self.times(x, layer["alpha"], f"{name}/alpha", half), added], name)
        mask = numpy.zeros((1, c, h, w))
        mask[:, :c2, ::max(1, w // w2), ::max(1, w // w2)] = 1
        if c2 > c:
            added = self.slice(added, 1, 0, c, f"{name}/channels")
        for axis, step in ((2, h2 // h), (3, w2 // w)):
            if step > 1:
                added = self.slice(added, axis, 0, h2 if axis == 2 else w2, f"{name}/every_{axis}", step)
        if w > w2:
            added = self.enlarged(added, w // w2, f"{name}/enlarged")
        if c2 < c:
            added = self.add("Pad", [added, self.ints(0, 0, 0, 0, 0, c - c2, 0, 0), self.scalar(0, half)],
                             f"{name}/filled")
        if w > w2:
            added = self.add("Mul", [added, self.typed(mask, f"{name}.where", half)], f"{name}/placed")
        if layer["alpha"] != 1:
            x = self.add("Mul", [x, self.typed(1 + (layer["alpha"] - 1) * mask, f"{name}.alpha", half)], f"{name}/alpha")
        return self.add("Add", [x, added], name)

    def crop(self, layer, name, half):
        """The middle; unless noadjust=1 from 0..1 to -1..1."""
        (_, h, w), (_, out_h, out_w) = self.network.shape(layer["reads"][0]), self.network.shape(layer["index"])
        top, left = (h - out_h) // 2, (w - out_w) // 2
        tensor = self.slice(self.read(layer["reads"][0]), 2, top, top + out_h, f"{name}/rows")
        tensor = self.slice(tensor, 3, left, left + out_w, f"{name}/columns")
        if layer["noadjust"]:
            return tensor
        return self.add("Sub", [self.times(tensor, 2, f"{name}/twice"), self.scalar(1)], name)

    def normalization(self, layer, name, half):
        """Darknet's sums over channels, which leave one out at the beginning: as a 1 x 1 convolution."""
        c, size = self.network.shape(layer["index"])[0], int(layer["size"])
        sums = numpy.zeros((c, c))
        sums[0, :size // 2] = 1
        for k in range(1, c):
            sums[k] = sums[k - 1]
            before, behind = k - (size - 1) // 2 - 1, k + size // 2
            if before >= 0:
                sums[k, before] -= 1
            if behind < c:
                sums[k, behind] += 1
        x = self.read(layer["reads"][0])
        square = self.add("Mul", [x, x], f"{name}/square")
        norm = self.add("Conv", [square, self.typed(layer["alpha"] * sums.reshape(c, c, 1, 1), f"{name}.sums", False),
                                 self.typed(numpy.full(c, layer["kappa"]), f"{name}.kappa", False)], f"{name}/norm",
                        kernel_shape=[1, 1])
        return self.add("Mul", [x, self.add("Pow", [norm, self.scalar(-layer["beta"])], f"{name}/power")], name)

    def l2norm(self, layer, name, half):
        x = self.read(layer["reads"][0])
        return self.add("Div", [x, self.add("ReduceL2", [x], f"{name}/length", axes=[1], keepdims=1)], name)

    # ---- losses, in inference ----

    def softmax(self, layer, name, half):
        tensor = self.read(layer["reads"][0], flat=True)
        if layer["tree"]:
            tree = self.trees[layer["index"]]
            soft = self.tree_shares(tensor, tree, f"{name}/soft", layer["temperature"])
            soft = self.absolute(self.reshape(soft, (1, -1), f"{name}/one"), tree, f"{name}/absolute")
            leaves = self.constant(numpy.array(tree.leaves(), "f4"), f"{name}.leaves")
            return self.reshape(self.add("Mul", [soft, leaves], f"{name}/leaves"), (-1,), f"{name}/values")
        groups = self.reshape(tensor, (layer["groups"], -1), f"{name}/groups")
        return self.reshape(self.shares(groups, f"{name}/soft", layer["temperature"]), (-1,), f"{name}/values")

    def logistic(self, layer, name, half):
        return self.add("Sigmoid", [self.read(layer["reads"][0])], name)
