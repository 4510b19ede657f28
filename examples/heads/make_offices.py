"""Write backbone.safetensors, and what four post offices hold, OFFICE.csv: pixels of handwritten digits.

The backbone has learnt on a third of the digits, which no office has. The offices' scanners shift digits by a pixel.
"""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from head_models import backbone
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

digits = load_digits()
shifted = np.roll(digits.images, 1, axis=2).reshape(-1, 64)
inked = (digits.data.std(axis=0) > 1) & (shifted.std(axis=0) > 1)  # the others are nearly always white
order = np.random.default_rng(0).permutation(len(digits.target))

torch.manual_seed(0)
x, y = torch.tensor(digits.data[order[:600]][:, inked] / 16).float(), torch.tensor(digits.target[order[:600]])
body = backbone(x.shape[1])
model = nn.Sequential(body, nn.Linear(64, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
for _ in range(200):
    loss = F.cross_entropy(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
save_file(body.state_dict(), "backbone.safetensors")

for number, office in enumerate(("harbour", "market", "station", "valley")):
    rows = order[600 + number :: 4]
    columns = {f"pixel_{place}": shifted[rows, place] / 16 for place in np.flatnonzero(inked)}
    pyarrow.csv.write_csv(pa.table({**columns, "digit": digits.target[rows]}), f"{office}.csv")
