"""What stands behind a detector's layers: boxes and scores, or what the heads read. It decides the order of the boxes,
which is Darknet's, and must not know how they are compared.

A box is (centre x, centre y, width, height) in fractions of the network's input. A score is that of a class.
"""

import numpy


class Heads:
    """layers: graph.Layers, which gets more nodes. boxes and scores: one tensor of each head."""

    def __init__(self, layers):
        self.layers, self.network = layers, layers.network
        self.boxes, self.scores = [], []
        for layer in self.network.heads():
            boxes, scores = getattr(self, layer["type"])(layer, f"layer_{layer['index']}")
            self.boxes.append(boxes)
            self.scores.append(scores)

    def joined(self):
        """The names of the outputs."""
        for name, parts in (("boxes", self.boxes), ("scores", self.scores)):
            if len(parts) > 1:
                self.layers.add("Concat", parts, name, axis=1)
            else:
                self.layers.add("Identity", parts, name)
        return ["boxes", "scores"]

    def selected(self, thresh, iou):
        """Which boxes are left: rows of (image, class, box), as ONNX has them."""
        count = sum(self.count(layer) for layer in self.network.heads())
        by_class = self.layers.add("Transpose", ["scores"], "scores_by_class", perm=[0, 2, 1])
        limits = [self.layers.ints(count), *(self.layers.scalar(limit) for limit in (iou, thresh))]
        self.layers.add("NonMaxSuppression", ["boxes", by_class, *limits], "selected", center_point_box=1)
        return "selected"

    @staticmethod
    def count(layer):
        cells = layer["side"]**2 if layer["type"] == "detection" else layer["output"][0] * layer["output"][1]
        return cells * layer["boxes"]

    # ---- pieces ----

    def rows(self, layer, name, box_first):
        """(batch, boxes, entries): of each cell its boxes, or of each box of the anchors its cells."""
        width, height, _ = layer["output"]
        cells, boxes = width * height, layer["boxes"]
        tensor = self.layers.reshape(self.layers.read(layer["reads"][0]), (boxes, -1, cells), f"{name}/planes")
        order = [0, 1, 3, 2] if box_first else [0, 3, 1, 2]
        tensor = self.layers.add("Transpose", [tensor], f"{name}/order", perm=order)
        return self.layers.reshape(tensor, (cells * boxes, -1), f"{name}/rows")

    def part(self, rows, first, end, name):
        return self.layers.slice(rows, 2, first, end, name)

    def affine(self, tensor, factor, offset, name):
        factor = numpy.broadcast_to(factor, offset.shape)
        tensor = self.layers.add("Mul", [tensor, self.numbers(factor, f"{name}.factor")], f"{name}/scaled")
        return self.layers.add("Add", [tensor, self.numbers(offset, f"{name}.offset")], name)

    def numbers(self, array, name):
        """(1, boxes, 2), all of it: OpenCV 4 spreads no shorter ones."""
        return self.layers.constant(array[None].astype("f4"), name)

    def sigmoid(self, tensor, name):
        return self.layers.add("Sigmoid", [tensor], name)

    def score(self, objectness, classes, name):
        return self.layers.add("Mul", [objectness, classes], f"{name}/scores")

    def join(self, centres, sides, name):
        return self.layers.add("Concat", [centres, sides], f"{name}/boxes", axis=2)

    @staticmethod
    def corners(layer):
        """(cells, 2): column and row."""
        width, height, _ = layer["output"]
        return numpy.stack(numpy.meshgrid(numpy.arange(width), numpy.arange(height)), -1).reshape(-1, 2)

    # ---- one function for each kind of head ----

    def yolo(self, layer, name):
        rows, grid = self.rows(layer, name, box_first=False), numpy.array(layer["output"][:2])
        scale, new, entries = layer["scale_x_y"], layer["new_coords"], 5 + layer["classes"]
        corner = numpy.repeat(self.corners(layer), layer["boxes"], 0)
        anchor = numpy.tile(numpy.reshape(layer["anchors"], (-1, 2)), (grid.prod(), 1))
        centres, sides = self.part(rows, 0, 2, f"{name}/xy"), self.part(rows, 2, 4, f"{name}/wh")
        likely = self.part(rows, 4, entries, f"{name}/objectness_and_classes")
        factor = anchor / (self.network.width, self.network.height)
        if new:
            sides, factor = self.layers.add("Mul", [sides, sides], f"{name}/squares"), 4 * factor
        else:
            centres, likely = self.sigmoid(centres, f"{name}/in_cell"), self.sigmoid(likely, f"{name}/likely")
            sides = self.layers.add("Exp", [sides], f"{name}/exp")
        centres = self.affine(centres, scale / grid, (corner - (scale - 1) / 2) / grid, f"{name}/centres")
        sides = self.layers.add("Mul", [sides, self.numbers(factor, f"{name}.anchors")], f"{name}/sides")
        objectness = self.part(likely, 0, 1, f"{name}/objectness")
        classes = self.part(likely, 1, 1 + layer["classes"], f"{name}/classes")
        return self.join(centres, sides, name), self.score(objectness, classes, name)

    def region(self, layer, name):
        rows, grid = self.rows(layer, name, box_first=True), numpy.array(layer["output"][:2])
        coords, entries = layer["coords"], layer["coords"] + 1 + layer["classes"]
        corner = numpy.tile(self.corners(layer), (layer["boxes"], 1))
        anchor = numpy.repeat(numpy.reshape(layer["anchors"], (-1, 2)), grid.prod(), 0)
        centres = self.sigmoid(self.part(rows, 0, 2, f"{name}/xy"), f"{name}/in_cell")
        centres = self.affine(centres, 1 / grid, corner / grid, f"{name}/centres")
        sides = self.layers.add("Exp", [self.part(rows, 2, 4, f"{name}/wh")], f"{name}/exp")
        sides = self.layers.add("Mul", [sides, self.numbers(anchor / grid, f"{name}.anchors")], f"{name}/sides")
        boxes, background = self.join(centres, sides, name), layer["background"]
        classes = self.part(rows, coords + (not background), entries, f"{name}/classes")
        kind = self.layers.shares if layer["softmax"] else self.sigmoid
        classes = kind(classes, f"{name}/likely")
        if background:  # the first of the classes is none
            return boxes, self.part(classes, 1, 1 + layer["classes"], f"{name}/scores")
        objectness = self.sigmoid(self.part(rows, coords, coords + 1, f"{name}/object"), f"{name}/objectness")
        return boxes, self.score(objectness, classes, name)

    def detection(self, layer, name):
        cells, boxes, count = layer["side"]**2, layer["boxes"], layer["classes"]
        flat, first, parts = self.layers.read(layer["reads"][0], flat=True), 0, []
        for what, one, each in (("classes", 1, count), ("objectness", boxes, 1), ("boxes", boxes, 4)):
            part = self.layers.slice(flat, 1, first, first + cells * one * each, f"{name}/part_{what}")
            parts.append(self.layers.reshape(part, (cells, one, each), f"{name}/rows_{what}"))
            first += cells * one * each
        classes, objectness, rows = parts
        if layer["softmax"]:
            classes = self.layers.shares(classes, f"{name}/likely")
        if boxes > 1:  # OpenCV 4 spreads one side only
            classes = self.layers.add("Concat", [classes] * boxes, f"{name}/for_each", axis=2)
        scores = self.layers.reshape(self.score(objectness, classes, f"{name}/each"), (cells * boxes, count),
                                     f"{name}/scores")
        rows = self.layers.reshape(rows, (cells * boxes, 4), f"{name}/box_rows")
        side = numpy.arange(cells) % layer["side"], numpy.arange(cells) // layer["side"]
        corner = numpy.repeat(numpy.stack(side, -1), boxes, 0) / layer["side"]
        centres = self.affine(self.part(rows, 0, 2, f"{name}/xy"), [1 / layer["side"]] * 2, corner, f"{name}/centres")
        sides = self.part(rows, 2, 4, f"{name}/wh")
        if layer["sqrt"]:
            sides = self.layers.add("Mul", [sides, sides], f"{name}/squares")
        return self.join(centres, sides, name), scores
