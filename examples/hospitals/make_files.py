"""Write what three hospitals hold: north.csv, south.csv, and west/ with train.parquet and test.parquet.

All have measured the same ten features of cell nuclei of breast cancer patients (scikit-learn's copy of UCI's data),
each in units of its own. South has its columns in another order, west has set test patients apart.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from sklearn.datasets import load_breast_cancer

data = load_breast_cancer()
names = [name.removeprefix("mean ").replace(" ", "_") for name in data.feature_names[:10]]
order = np.random.default_rng(0).permutation(len(data.target))


def patients(rows: slice, units: float) -> pa.Table:
    x, y = data.data[order[rows], :10] * units, data.target[order[rows]]
    columns = {name: x[:, place] for place, name in enumerate(names)}
    return pa.table({**columns, "diagnosis": np.array(["malignant", "benign"])[y]})


south = patients(slice(190, 380), units=100)
Path("west").mkdir(exist_ok=True)
pyarrow.csv.write_csv(patients(slice(190), units=1), "north.csv")
pyarrow.csv.write_csv(south.select(south.column_names[::-1]), "south.csv")
pyarrow.parquet.write_table(patients(slice(380, 450), units=0.01), "west/train.parquet")
pyarrow.parquet.write_table(patients(slice(450, None), units=0.01), "west/test.parquet")
