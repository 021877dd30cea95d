"""Newton-Schulz orthogonalization in bfloat16, of one matrix or of many padded to one shape.

For a matrix M with singular value decomposition U S V^T it approaches U V^T. One step of the iteration is

    X <- a X + (b A + c A²) X,  A = X X^T,  (a, b, c) = (3.4445, -4.7750, 2.0315)

from X = M / (|M| + 1e-7) with the Frobenius norm; five steps bring the singular values near 1, to some 0.7 to 1.2,
unless they began very small. It is an odd polynomial of X, so NS(M^T) = NS(M)^T, NS(M P) = NS(M) P for a permutation P,
and zero rows or columns stay zero and change nothing else: a matrix may be transposed, reordered and padded.

Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
https://kellerjordan.github.io/posts/muon/, which `torch.optim.Muon` follows too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPSILON = 1e-7


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """The Newton-Schulz image of one matrix.

    Args:
        matrix: (rows, columns), of any floating dtype; it is left as it is.

    Returns:
        (rows, columns) in bfloat16. Dimensionless: scaling the matrix changes nothing but roundings.
    """
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16()
    x = x / (torch.linalg.vector_norm(x) + EPSILON)
    tall = x.size(0) > x.size(1)
    x = x.mT if tall else x
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def orthogonalize_padded(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The Newton-Schulz images of several matrices, by one chain of batched products.

    Each is padded with zero rows to the tallest. That is neutral but for roundings: where it makes rows exceed columns,
    the products run over the transposed matrices, which moves a result by 1 to 3 %.

    Args:
        matrices: N of (rows_i, columns) on one device, with the same number of columns.

    Returns:
        (N, max(rows_i), columns) in bfloat16; rows beyond a matrix's own are zero.
    """
    a, b, c = COEFFICIENTS
    x = _padded(matrices)
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + EPSILON)
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x
    for _ in range(STEPS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _padded(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The matrices in bfloat16, stacked."""
    rows = max(matrix.size(0) for matrix in matrices)
    shape = (len(matrices), rows, matrices[0].size(1))
    stack = torch.zeros(shape, dtype=torch.bfloat16, device=matrices[0].device)
    places = [place[: matrix.size(0)] for place, matrix in zip(stack.unbind(), matrices, strict=True)]
    torch._foreach_copy_(places, list(matrices))
    return stack
