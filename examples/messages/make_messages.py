"""Write what four desks hold, DESK.csv: messages of eight words, as token ids, and what each is about.

The messages are generated. About each topic there are twelve words; of a message's words two or so are among those, one
may be of another topic, and the others say nothing. No message is at two desks.
"""

import numpy as np
import pyarrow as pa
import pyarrow.csv

DESKS, ROWS, WORDS = ("first", "second", "third", "fourth"), 160, 8
TOPICS = {
    "account": "password login locked email reset code sign page user profile blocked address",
    "delivery": "parcel courier late tracking depot box driver door shipped lost sent package",
    "refund": "money charge receipt paid twice card return invoice price bank amount wrong",
    "visit": "appointment monday book cancel morning doctor time calendar week room clinic hour",
}
FILLERS = "please my the i is was to you can not it and for a have still"
IDS = {word: place for place, word in enumerate(" ".join([FILLERS, *TOPICS.values()]).split())}

rng = np.random.default_rng(0)


def word(topic: str) -> str:
    """In 3 of 12 cases one of the topic, in 2 one of any topic."""
    kind = rng.integers(12)
    source = TOPICS[topic if kind < 3 else rng.choice(list(TOPICS))] if kind < 5 else FILLERS
    return str(rng.choice(source.split()))


for desk in DESKS:
    topics = rng.choice(list(TOPICS), size=ROWS)
    ids = np.array([[IDS[word(topic)] for _ in range(WORDS)] for topic in topics])
    columns = {f"word_{place}": ids[:, place] for place in range(WORDS)}
    pyarrow.csv.write_csv(pa.table({**columns, "topic": topics}), f"{desk}.csv")
