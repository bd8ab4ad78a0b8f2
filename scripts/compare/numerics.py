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


def heat_map(log):
    """{"iterations", "layers": [{"layer", "type", "format"}], "delta_zero", "out_max", "delta_max":
    [layer][time]}; None where the log has no layers."""
    columns = log.layers()
    if not columns:
        return None
    layers = {}
    for _, rows in columns:
        for row in rows:
            layers[row["layer"]] = {key: row.get(key) for key in ("layer", "type", "format")}
    order = sorted(layers)
    at = [{row["layer"]: row for row in rows} for _, rows in columns]
    found = {"iterations": [number for number, _ in columns],
             "layers": [layers[layer] for layer in order]}
    for key in ("delta_zero", "out_max", "delta_max"):
        found[key] = [[column.get(layer, {}).get(key) for column in at] for layer in order]
    return found


def extremes(heat):
    """The worst of a heat map: largest share of zeros, and largest output held against FP16's."""
    if not heat:
        return None

    def worst(key):
        cells = [(value, heat["layers"][row], heat["iterations"][column])
                 for row, values in enumerate(heat[key]) for column, value in enumerate(values)
                 if value is not None and heat["layers"][row].get("format") in ("fp16", None)]
        if not cells:
            return None
        value, layer, iteration = max(cells, key=lambda cell: cell[0])
        return {"value": value, "layer": layer["layer"], "type": layer["type"],
                "iteration": iteration}

    return {"underflow": worst("delta_zero"), "output": worst("out_max")}
