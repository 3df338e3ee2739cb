"""Whether a reworded query still asks for the same: similarity of two embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

INTENT_THRESHOLD = 0.8
"""The similarity from which on a rewording counts as asking for the same, for all-MiniLM-L6-v2.

A model that puts "people" for "cucumbers" asks something else at .66. Of 550 rewordings by
SmolLM2-135M of 50 of XSTest's safe prompts 333 are as similar as this and have other words; read
one by one, 46 of them ask something else. `mutators.form` lets 305 pass, 19 of those. A courtesy,
a purpose or a viewpoint around a query keeps it at .82 and above (but 3 % of the viewpoints, at .75
and above). Of what `synonym_replace` makes of XSTest's safe prompts 20 % lie below. Another encoder
needs another threshold.
"""


def similarity(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Cosine similarity of two unit rows, in [-1, 1].

    The products are summed in float64, so that the same two rows give the same number wherever
    they stood.

    Args:
        a: One embedding, shape (D,), of length 1.
        b: The other, shape (D,), of length 1.

    Raises:
        ValueError: The two are not single rows of one length.
    """
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"expected two rows of one length, got shapes {a.shape} and {b.shape}")
    return min(1.0, max(-1.0, float(np.dot(a.astype(np.float64), b.astype(np.float64)))))
