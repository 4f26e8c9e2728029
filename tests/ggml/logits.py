"""logits.py TRUTH FILE…: how far the logits of each file are from the first one's: the mean divergence of the
probabilities (Kullback and Leibler), and how many of the 32 tokens have another favourite. Where the first one is
truth.bin, attune-CACHE must not be farther from it than cpu-CACHE is."""
import array
import math
import sys

TOKENS = 32


def rows(path: str) -> list[array.array]:
    """The logits of each token."""
    numbers = array.array("f")
    with open(path, "rb") as file:
        numbers.frombytes(file.read())
    width = len(numbers) // TOKENS
    return [numbers[i * width:(i + 1) * width] for i in range(TOKENS)]


def log_softmax(row: array.array) -> list[float]:
    """Logarithms of the probabilities."""
    most = max(row)
    total = most + math.log(sum(math.exp(x - most) for x in row))
    return [x - total for x in row]


def main() -> None:
    """Prints a line for each file; fails where the two have little to do with each other."""
    truth = [log_softmax(row) for row in rows(sys.argv[1])]
    failed, found = False, {}
    for path in sys.argv[2:]:
        divergence, others = 0.0, 0
        for a, row in zip(truth, rows(path)):
            b = log_softmax(row)
            divergence += sum(math.exp(x) * (x - y) for x, y in zip(a, b)) / TOKENS
            others += a.index(max(a)) != b.index(max(b))
        name = path.rsplit("/", 1)[-1]
        found[name] = divergence
        print(f"{name}: divergence {divergence:.2e}, another favourite {others} of {TOKENS}")
        failed |= not divergence < 0.02
    if sys.argv[1].endswith("/truth.bin"):
        for name in found:
            stock = found.get(name.replace("attune-", "cpu-"), 1)
            if name.startswith("attune-") and found[name] > 1.1 * stock:
                print(f"{name} is farther from the truth than ggml is")
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
