"""Write what four post offices hold, OFFICE.csv, and what the server has to test on, server.csv: pixels of digits.

What is asked of a digit is not which one it is, but what it is like, four questions at once. No office sees all digits.
"""

import numpy as np
import pyarrow as pa
import pyarrow.csv
from sklearn.datasets import load_digits

LIKE = {"loop": (0, 6, 8, 9), "straight": (1, 4, 7), "even": (0, 2, 4, 6, 8), "large": (5, 6, 7, 8, 9)}
OFFICES = {
    "harbour": (0, 1, 2, 5, 6, 7),
    "market": (2, 3, 4, 6, 8, 9),
    "station": (0, 1, 5, 7, 8, 9),
    "valley": (0, 3, 4, 5, 7, 9),
}

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
inked = np.flatnonzero(digits.data.std(axis=0) > 1)  # the others are white for everybody


def table(rows: np.ndarray) -> pa.Table:
    pixels = {f"pixel_{place}": digits.data[rows, place] for place in inked}
    return pa.table(
        {**pixels, **{word: np.isin(digits.target[rows], of).astype(int) for word, of in LIKE.items()}}
    )


for number, (office, seen) in enumerate(OFFICES.items()):
    held = order[400 + number :: len(OFFICES)]  # what nobody else has
    pyarrow.csv.write_csv(table(held[np.isin(digits.target[held], seen)]), f"{office}.csv")
pyarrow.csv.write_csv(table(order[:400]), "server.csv")
