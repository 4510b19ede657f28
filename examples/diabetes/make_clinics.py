"""Write what three clinics hold, coast.csv, hills.csv and plain.csv: patients, and how their diabetes went on.

All have measured the same ten things (scikit-learn's copy of Efron's data). Coast and hills have blood values in mg/dl,
plain in mmol/l and with its columns in another order.
"""

import numpy as np
import pyarrow as pa
import pyarrow.csv
from sklearn.datasets import load_diabetes

NAMES = ("age", "sex", "bmi", "pressure", "cholesterol", "ldl", "hdl", "ratio", "triglycerides", "glucose")
IN_MMOL = {"cholesterol": 0.02586, "ldl": 0.02586, "hdl": 0.02586, "glucose": 0.0555}
CLINICS = {"coast": slice(147), "hills": slice(147, 294), "plain": slice(294, None)}

data = load_diabetes(scaled=False)
order = np.random.default_rng(0).permutation(len(data.target))


def patients(clinic: str) -> tuple[np.ndarray, np.ndarray]:
    rows = order[CLINICS[clinic]]
    units = np.array([IN_MMOL.get(name, 1.0) if clinic == "plain" else 1.0 for name in NAMES])
    return data.data[rows] * units, data.target[rows]


if __name__ == "__main__":
    for clinic in CLINICS:
        x, y = patients(clinic)
        table = pa.table({**dict(zip(NAMES, x.T, strict=True)), "progression": y})
        columns = table.column_names[::-1] if clinic == "plain" else table.column_names
        pyarrow.csv.write_csv(table.select(columns), f"{clinic}.csv")
