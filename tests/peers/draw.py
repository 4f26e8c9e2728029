"""What the frameworks' random configurations have in common."""
import numpy

HEADS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
HEAD_DIMS = [1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 24, 32, 33, 40, 64, 80]
WIDTHS = [1, 3, 8, 10, 15, 24, 33, 48, 65, 96, 128]
LENGTHS = [1, 2, 3, 5, 8, 9, 13, 16, 17, 24, 31, 33, 48, 64, 65, 77, 100, 128, 200, 257, 300]
MAX_WIDTH = 384


class Draw:
    """Draws of one case. `small` ones are for recording."""

    def __init__(self, seed, small):
        self.rng = numpy.random.default_rng(seed)
        self.small = small

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def pick(self, values):
        return values[int(self.rng.integers(len(values)))]

    def below(self, values, bound):
        return self.pick([value for value in values if value <= bound])

    def heads(self):
        return self.pick([2, 3, 4] if self.small else HEADS)

    def head_dim(self, heads):
        return self.below(HEAD_DIMS[self.small :], (14 if self.small else MAX_WIDTH) // heads)

    def width(self):
        return self.pick(WIDTHS[1:4] if self.small else WIDTHS)

    def batch(self):
        return int(self.rng.integers(1, 4 if self.small else 6))

    def length(self):
        return self.pick(LENGTHS[1:6] if self.small else LENGTHS)

    def normal(self, *shape, scale=1.0):
        return (scale * self.rng.standard_normal(shape)).astype("float32")

    def sharpness(self):
        """By how much weights of queries and keys grow, so that softmax is anything from flat to sharp."""
        return float(self.rng.uniform(0.7, 2.5))

    def keep(self, shape, share=0.6):
        """A mask, True where a key is seen; every row sees the first."""
        mask = self.rng.random(shape) < share
        mask[..., 0] = True
        return mask

    def lengths(self, batch, longest):
        """Of which one is the longest, or a mask of them would be shorter."""
        lengths = self.rng.integers(1, longest + 1, batch).astype("int32")
        lengths[int(self.rng.integers(batch))] = longest
        return lengths

    def spell(self, sizes, dynamic):
        """As much of the sizes as a problem's text may name: files and weights tell the others."""
        how = self.pick(["short", "short", "full", "dynamic"])
        if how == "full":
            return dict(sizes)
        named = {"num_heads": sizes["num_heads"]} if "num_heads" in sizes else {}
        return named if how == "short" else {**named, **{key: "dynamic" for key in dynamic}}

    def form(self):
        return self.pick(["safetensors", "safetensors", "directory"])
