"""What the plugin's log tells about FP16: the loss scale, steps redone and skipped, gradients, and for
every layer how much of its gradient became zero and how close its output came to FP16's largest."""

import statistics

FP16_LARGEST = 65504
CURVE_POINTS = 240


def thin(series, join=statistics.fmean):
    """At most CURVE_POINTS points of [(iteration, value)]: neighbours joined, at the last one's
    iteration."""
    size = -(-len(series) // CURVE_POINTS) or 1
    parts = [series[i:i + size] for i in range(0, len(series), size)]
    return [[part[-1][0], join([value for _, value in part])] for part in parts]


def steps(series):
    """A staircase: the points where the value changes, and the last."""
    kept = [list(point) for i, point in enumerate(series)
            if i == 0 or point[1] != series[i - 1][1] or i == len(series) - 1]
    return kept if len(kept) <= CURVE_POINTS else thin(series, max)


def summarise(log):
    """One run. None where it has no log."""
    if not log.iterations:
        return None
    last = log.iterations[max(log.iterations)]
    scales = [value for _, value in log.series("loss_scale")]
    gradients = [value for _, value in log.series("grad_norm")]
    return {
        "redone": last.get("redone"), "skipped": last.get("skipped"),
        "scale_first": scales[0] if scales else None, "scale_last": scales[-1] if scales else None,
        "scale_min": min(scales, default=None), "scale_max": max(scales, default=None),
        "gradient_norm": statistics.median(gradients) if gradients else None,
        "not_finite": sum(1 for entry in log.iterations.values() if entry.get("loss") is None),
    }


def heat_map(log, fp32=None):
    """{"iterations", "layers": [{"layer", "type", "format"}], "delta_zero", "out_max", "delta_max",
    "headroom", "delta_headroom", "underflow": [layer][time]}; None where the log has no layers. Many
    gradients are zero whatever the precision: three of four at a max pooling of 2x2, most of a
    detection head's. Underflow is the share that is zero here and not in the same seed's FP32 run; fp32
    is that run's log. Layers stored as FP32 have no underflow; headroom and delta_headroom are out_max
    and delta_max of those stored as FP16."""
    columns = log.layers()
    if not columns:
        return None
    layers = {row["layer"]: {key: row.get(key) for key in ("layer", "type", "format")}
              for _, rows in columns for row in rows}
    found = {"iterations": [number for number, _ in columns],
             "layers": [layers[layer] for layer in sorted(layers)]}
    for key in ("delta_zero", "out_max", "delta_max"):
        found[key] = cells(columns, layers, key)
    base = dict(fp32.layers()) if fp32 else {}
    by_design = cells([(number, base.get(number, ())) for number in found["iterations"]], layers,
                      "delta_zero")
    lost = [[None if None in pair else max(0, pair[0] - pair[1]) for pair in zip(*rows)]
            for rows in zip(found["delta_zero"], by_design)]
    found["underflow"] = rows_of(found["layers"], lost, ("fp16", "bf16", None))
    found["headroom"] = rows_of(found["layers"], found["out_max"], ("fp16", None))
    found["delta_headroom"] = rows_of(found["layers"], found["delta_max"], ("fp16", None))
    return found


def rows_of(layers, rows, formats):
    """The rows of layers stored in one of the formats; None in all others."""
    return [row if layer["format"] in formats else [None] * len(row)
            for layer, row in zip(layers, rows)]


def cells(columns, layers, key):
    """[layer][time] of one key, None where there is none."""
    at = [{row["layer"]: row.get(key) for row in rows} for _, rows in columns]
    return [[column.get(layer) for column in at] for layer in sorted(layers)]


def extremes(heat):
    """The worst of a heat map: largest share lost to underflow, and largest output and delta held
    against FP16's."""

    def worst(key):
        found = [(value, heat["layers"][row], heat["iterations"][column])
                 for row, values in enumerate(heat[key]) for column, value in enumerate(values)
                 if value is not None]
        if not found:
            return None
        value, layer, iteration = max(found, key=lambda cell: cell[0])
        return {"value": value, "layer": layer["layer"], "type": layer["type"],
                "iteration": iteration}

    return {"underflow": worst("underflow"), "output": worst("headroom"),
            "delta": worst("delta_headroom")}
