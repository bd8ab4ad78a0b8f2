"""Without a key of ours in the cfg the plugin changes nothing: weights are equal byte for byte.

usage: unchanged.py FIXED_TRAINING_LINKED FIXED_TRAINING_STOCK LIBDARKNET_AMP

The first program is linked to the plugin and to libdarknet.so, the second to libdarknet.so only; it
also runs with the plugin in LD_PRELOAD.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset
from running import train_fixed


def main():
    linked, stock, plugin = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set")
        cfg = folder / "toy.cfg"
        expected = train_fixed(stock, cfg, folder / "stock.weights", attached=0)
        assert train_fixed(linked, cfg, folder / "linked.weights", attached=1) == expected
        preload = {"LD_PRELOAD": plugin}
        assert train_fixed(stock, cfg, folder / "preload.weights", 1, preload) == expected
        start = toyset.read_weights(folder / "stock.weights")
        cfg.write_text(cfg.read_text().replace("learning_rate=0.001", "learning_rate=0.002"))
        train_fixed(stock, cfg, folder / "other.weights", attached=0)
        assert toyset.read_weights(folder / "other.weights") != start, "training has no effect"


main()
