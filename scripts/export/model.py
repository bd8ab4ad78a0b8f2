"""The ONNX model of a network: its inputs, outputs and metadata. It decides the version of ONNX, and which tensors are
outputs."""

import json

import onnx
from graph import Layers
from heads import Heads
from network import Refused, Tree
from onnx import TensorProto, helper

# ONNX Runtime 1.16, TensorRT 10, OpenVINO 2024 and OpenCV 4.6 take both; operations have not changed their meaning since.
OPSET, IR_VERSION = 13, 7
LARGEST_FILE = 2**31 - 1  # protobuf's


def read_trees(network):
    return {layer["index"]: Tree(layer["tree"], layer["outputs"]) for layer in network.layers if layer.get("tree")}


def value(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def input_value(network):
    channels, height, width = network.shape(-1)
    if (channels, height, width) == (network.inputs, 1, 1):
        return value("images", "batch", network.inputs)
    return value("images", "batch", channels, height, width)


def detector_outputs(network, layers, options):
    if options.raw:
        return [raw_output(network, layers, layer["reads"][0], f"head_{layer['index']}") for layer in network.heads()]
    heads = Heads(layers)
    names, count = heads.joined(), sum(map(heads.count, network.heads()))
    outputs = [value(name, "batch", count, last) for name, last in zip(names, (4, network.classes()))]
    if options.nms:
        outputs.append(value(heads.selected(options.thresh, options.iou), "selected", 3, kind=TensorProto.INT64))
    return outputs


def raw_output(network, layers, index, name):
    flat = layers.tensors[index][1]
    layers.add("Identity", [layers.read(index, flat=flat)], name)
    shape = network.shape(index)
    return value(name, "batch", *((shape[0] * shape[1] * shape[2],) if flat else shape))


def other_outputs(network, layers):
    found = network.outputs()
    names = ["output"] if len(found) == 1 else [f"output_{layer['index']}" for layer in found]
    return [raw_output(network, layers, layer["index"], name) for layer, name in zip(found, names)]


def metadata(network, options, kept, versions, names):
    precision = {"computes_in": "fp16" if options.half else "fp32", "layers_in_fp32": kept}
    precision["trained_in"] = network.sidecar.get("trained_in")
    precision["left_fp16_in_training"] = network.sidecar["left_fp16"]
    image = {"width": network.width, "height": network.height, "channels": network.channels, "order": "NCHW, RGB",
             "scaling": "0 to 1", "fitted": network.resize, "border": 0.5}
    heads = [{"layer": layer["index"], "type": layer["type"], "classes": layer["classes"],
              "anchors": layer.get("anchors")} for layer in network.heads()]
    found = {"names": names, "input": image, "precision": precision, "heads": heads, "versions": versions}
    if heads and not options.raw:
        found["boxes"] = "centre x, centre y, width, height in fractions of the input; scores: objectness times class"
    return {key: json.dumps(entry) for key, entry in found.items()}


def make_model(network, weights, in_half, options, described):
    """described: the metadata."""
    layers = Layers(network, weights, set(in_half), read_trees(network))
    outputs = detector_outputs(network, layers, options) if network.heads() else other_outputs(network, layers)
    graph = helper.make_graph(layers.nodes, "darknet", [input_value(network)], outputs, list(layers.constants.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="darknet-amp",
                              ir_version=IR_VERSION)
    helper.set_model_props(model, described)
    if model.ByteSize() > LARGEST_FILE:
        raise Refused(f"{network.cfg}: its file would have {model.ByteSize() / 2**30:.1f} GiB, and ONNX ends at 2"
                      + ("" if options.half else "; --half halves it"))
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()
