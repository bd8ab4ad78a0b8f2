"""Whether ONNX Runtime makes of the file what Darknet makes of the network, on one image. It decides what is the same."""

import json
import tempfile
from pathlib import Path

import numpy
from network import Refused, name_of, run

# Of a number, or of the root mean square of its kind where that is larger.
TOLERANCE = 1e-4
# With --half: of a detector's boxes above SCORE, and of other networks' numbers.
SCORE, LEAST_IOU, SCORE_TOLERANCE = .25, .95, .02
HALF_TOLERANCE = .05


def make_image(network, path):
    """(channels, height, width): the picture as Darknet fits it in, but for the last bit; without one, noise."""
    if not path:
        return numpy.random.default_rng(1).random(network.inputs, "f4")
    try:
        from PIL import Image
    except ImportError:
        raise Refused("--image needs Python's package Pillow: pip install Pillow") from None
    if network.channels not in (1, 3) or network.channels * network.height * network.width != network.inputs:
        raise Refused("--image: the network reads no pictures of 1 or 3 channels")
    try:
        picture = Image.open(path).convert("RGB" if network.channels == 3 else "L")
    except (OSError, ValueError) as error:
        raise Refused(f"--image {path}: {error}") from None
    size = network.width, network.height
    if network.resize == "letterboxed":
        factor = min(size[0] / picture.width, size[1] / picture.height)
        size = max(1, int(picture.width * factor)), max(1, int(picture.height * factor))
    fitted = Image.new(picture.mode, (network.width, network.height), (128,) * 3 if network.channels == 3 else 128)
    fitted.paste(picture.resize(size, Image.BILINEAR), tuple((a - b) // 2 for a, b in zip(fitted.size, size)))
    array = numpy.asarray(fitted, "f4").reshape(network.height, network.width, -1) / 255
    return array.transpose(2, 0, 1).ravel()


def of_darknet(darknet, network, image):
    """(whose FP32, {layer: numbers}, rows of (x, y, w, h, objectness, scores ...)).

    It is darknet-amp's own where Darknet has none, or crashes, or reads what is not there."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "image", Path(folder) / "outputs"
        image.astype("<f4").tofile(given)
        said = json.loads(run(darknet, "amp", "predict", network.cfg, network.weights_path, "--input", given,
                              "--output", made, "--nogpu"))
        numbers, layers = numpy.fromfile(made, "<f4"), {}
    for output in said["outputs"]:
        layers[output["layer"]], numbers = numbers[:output["values"]], numbers[output["values"]:]
    return said["computed_by"], layers, numbers.reshape(said["boxes"], 5 + said["classes"])


def of_onnx(model, network, image):
    import onnxruntime
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    shape = [1, *(side for side in session.get_inputs()[0].shape[1:])]
    return dict(zip(names, session.run(names, {"images": image.reshape(shape)})))


def difference(found, wanted):
    """The largest, relative to a number or to the root mean square of its kind; the last axis are kinds."""
    if not numpy.isfinite(wanted).all():
        raise Refused("Darknet's own outputs are not finite: nothing can be compared")
    magnitude = abs(wanted.astype("f8"))
    floor = numpy.sqrt((magnitude**2).mean(axis=tuple(range(magnitude.ndim - 1)), keepdims=True))
    with numpy.errstate(all="ignore"):
        off = abs(found - wanted.astype("f8")) / numpy.maximum(magnitude, floor)
    return float(numpy.where(found == wanted, 0, numpy.nan_to_num(off, nan=numpy.inf)).max(initial=0))


def activated(layer, raw):
    """What Darknet's head makes of what it reads, (entries, cells) of each box."""
    def sigmoid(x):
        return 1 / (1 + numpy.exp(-x.astype("f8")))

    def shares(x, axis):
        e = numpy.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    if layer["type"] == "detection":
        made, end = raw.astype("f8").ravel(), layer["side"]**2 * layer["classes"]
        if layer["softmax"]:
            made[:end] = shares(made[:end].reshape(-1, layer["classes"]), 1).ravel()
        return made
    made = raw.astype("f8").reshape(layer["boxes"], -1, layer["output"][0] * layer["output"][1])
    if layer["type"] == "yolo":
        if not layer["new_coords"]:
            made[:, :2], made[:, 4:] = sigmoid(made[:, :2]), sigmoid(made[:, 4:])
        made[:, :2] = made[:, :2] * layer["scale_x_y"] - (layer["scale_x_y"] - 1) / 2
        return made.ravel()
    coords = layer["coords"]
    made[:, :2] = sigmoid(made[:, :2])
    if not layer["background"]:
        made[:, coords] = sigmoid(made[:, coords])
    first = coords + (not layer["background"])
    if layer["softmax"]:
        made[:, first:] = shares(made[:, first:], 1)
    else:
        made[:, coords + 1:] = sigmoid(made[:, coords + 1:])
    return made.ravel()


def pairs_of(network, outputs, layers, boxes):
    """(what, of ONNX, of Darknet): the same numbers."""
    if "boxes" in outputs:
        return [("boxes", outputs["boxes"][0], boxes[:, :4]),
                ("scores", outputs["scores"].reshape(-1, 1), boxes[:, 5:].reshape(-1, 1))]
    if network.heads():
        return [(name_of(layer), activated(layer, outputs[f"head_{layer['index']}"]).reshape(-1, 1),
                 layers[layer["index"]].reshape(-1, 1)) for layer in network.heads()]
    found = [outputs[name] for name in sorted(outputs, key=lambda name: int(name.partition("_")[2] or 0))]
    return [(name_of(layer), array.reshape(-1, 1), layers[layer["index"]].reshape(-1, 1))
            for layer, array in zip(network.outputs(), found)]


def overlap(a, b):
    """IoU of boxes by rows of centre and sides."""
    low = numpy.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = numpy.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    common = numpy.clip(high - low, 0, None).prod(1)
    return common / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - common)


def same_boxes(outputs, wanted):
    """(text, whether the boxes above SCORE are the same). A box of ONNX's has the place of Darknet's."""
    boxes, scores = outputs["boxes"][0].astype("f8"), outputs["scores"][0].astype("f8")
    there = (wanted[:, 5:] > SCORE) | ~(scores <= SCORE)
    with numpy.errstate(all="ignore"):
        iou = overlap(boxes, wanted[:, :4].astype("f8"))[:, None]
        wrong = there & ~((iou >= LEAST_IOU) & (abs(scores - wanted[:, 5:]) <= SCORE_TOLERANCE))
    if not there.any():
        return (f"no box scores above {SCORE} in the picture that both were given, so nothing was compared: give an "
                "--image that has some"), True
    return (f"{int(there.sum())} boxes above {SCORE}, {int(wrong.sum())} of them not the same (IoU {LEAST_IOU}, scores "
            f"within {SCORE_TOLERANCE})"), not wrong.any()


def compare(darknet, network, model, options):
    """(text, whether it is the same)."""
    image = make_image(network, options.image)
    whose, layers, boxes = of_darknet(darknet, network, image)
    outputs = of_onnx(model, network, image)
    against = f"ONNX Runtime against {whose}'s FP32, on {options.image or 'an image of noise'}: "
    if options.half and "boxes" in outputs:
        said, same = same_boxes(outputs, boxes)
        return against + said, same
    allowed = HALF_TOLERANCE if options.half else TOLERANCE
    differences = {what: difference(found, wanted) for what, found, wanted in pairs_of(network, outputs, layers, boxes)}
    worst = max(differences, key=differences.get)
    said = f"largest relative difference {differences[worst]:.2g}, in {worst} (allowed: {allowed:g})"
    return against + said, differences[worst] <= allowed
