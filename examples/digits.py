"""Look at digits that a trained network gets wrong.

In comes the file that `aril train mnist` saved (`python examples/digits.py [FILE]`), out go drawings of digits.
"""

import sys
from pathlib import Path

import numpy as np

from aril import Context, Tensor
from aril.cli_mnist import load
from aril.nn.datasets import mnist

SHADES = " .:-=+*#%@"


def draw(image: np.ndarray) -> str:
    """A 28x28 image of bytes as text, every second row: characters are about twice as high as wide."""
    rows = image[::2].astype(int) * (len(SHADES) - 1) // 255
    return "\n".join("".join(SHADES[shade] for shade in row) for row in rows)


def main() -> None:
    """Draw the first few mistakes among 500 test digits."""
    net = load(Path(sys.argv[1] if len(sys.argv) > 1 else "mnist.safetensors"))
    _, _, images, labels = mnist(as_numpy=True)
    images, labels = images[:500], labels[:500]
    with Context(GRAD=0):
        odds = net(Tensor(images)).softmax().numpy()
    guesses = odds.argmax(axis=1)
    wrong = np.flatnonzero(guesses != labels)
    for index in wrong[:5]:
        print(draw(images[index, 0]))
        print(f"a {labels[index]}, taken for a {guesses[index]} ({odds[index].max():.0%} sure)\n")
    print(f"{len(wrong)} of {len(labels)} wrong")


if __name__ == "__main__":
    main()
