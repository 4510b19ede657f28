"""Write what four hospitals hold, scans/HOSPITAL/CLASS/*.png, and what the server has to test on, server/CLASS/*.png.

Small grey images (scikit-learn's handwritten digits). No hospital has all classes, one has a single one; each has a
camera with a brightness of its own.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HOSPITALS = {"north": (0, 1, 2), "south": (2, 3, 4), "east": (4, 0), "west": (3,)}
BRIGHTNESS = {"north": 15.0, "south": 9.0, "east": 12.0, "west": 6.0}
WORDS = ("zero", "one", "two", "three", "four")

digits = load_digits()


def write(folder: Path, number: int, brightness: float) -> None:
    """Fifty images of a class, each of which nobody else has."""
    (folder / WORDS[number]).mkdir(parents=True, exist_ok=True)
    for row in [left[number].pop() for _ in range(50)]:
        pixels = (digits.images[row] * brightness).astype(np.uint8)
        Image.fromarray(pixels).save(folder / WORDS[number] / f"{row}.png")


left = {number: list(np.flatnonzero(digits.target == number)) for number in range(len(WORDS))}
for hospital, classes in HOSPITALS.items():
    for number in classes:
        write(Path("scans", hospital), number, BRIGHTNESS[hospital])
for number in range(len(WORDS)):
    write(Path("server"), number, brightness=15.0)
