"""How far two runs ended apart."""

import numpy as np
import torch

from exact_resume.errors import LabError

# What a square of 0 is divided by, so that the quotient stays a number.
TINY = np.finfo(np.float64).tiny
# What is larger is told as this, since JSON has no infinity.
LARGEST = float(np.finfo(np.float64).max)


def check_same_tensors(reference, weights, reference_path, path):
    """Raise LabError naming both paths unless the dicts of tensors have the same names, shapes and dtypes."""
    for name in sorted(reference.keys() ^ weights.keys()):
        raise LabError(
            f"{path}: tensor {name} is {'missing' if name in reference else 'unknown'}; wanted the tensors of {reference_path}"
        )
    for name, tensor in weights.items():
        found, wanted = (
            f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in (tensor, reference[name])
        )
        if found != wanted:
            raise LabError(f"{path}: tensor {name}: found {found}, wanted {wanted} as in {reference_path}")


def distance(reference, weights):
    """Return max_abs_diff, the largest absolute difference of any element, and rel_l2, |weights - reference| /
    |reference| (L2, in float64), of two dicts of the same tensors, as finite floats.

    A complex number counts as two. Tensors of types that hold no numbers of a known size, such as torch.bits8, are left
    out; with nothing left both are 0.
    """
    # In numpy, whose sums go one way with any number of threads.
    pairs = [(_numbers(tensor), _numbers(weights[name])) for name, tensor in reference.items()]
    pairs = [(wanted, found) for wanted, found in pairs if wanted is not None]
    whole = np.concatenate([np.zeros(0), *(wanted for wanted, _ in pairs)])
    with np.errstate(over="ignore"):
        difference = np.concatenate([np.zeros(0), *(found - wanted for wanted, found in pairs)])
        largest = min(float(np.abs(difference).max(initial=0.0)), LARGEST)
    # A power of two changes no digit, and keeps the squares from overflowing.
    scale = 2.0 ** max(0, np.frexp(max(largest, np.abs(whole).max(initial=0.0)))[1] - 500)
    with np.errstate(over="ignore"):
        rel_l2 = np.sqrt(np.square(difference / scale).sum() / max(np.square(whole / scale).sum(), TINY))
    return {"max_abs_diff": largest, "rel_l2": min(float(rel_l2), LARGEST)}


def same_bits(reference, weights):
    """Whether two dicts of the same tensors hold the same bits: unlike in a difference, 0 and -0 are not the same here."""
    return all(torch.equal(_bits(tensor), _bits(weights[name])) for name, tensor in reference.items())


def first_difference(reference, losses):
    """Return the first step of `losses` whose loss, as logged, is not the one in `reference`, both texts by step; None
    if none is.
    """
    return next((step for step, loss in losses.items() if reference.get(step) != loss), None)


def _numbers(tensor):
    """Return a tensor's values in float64, flat, as a numpy array; None when its type has no conversion."""
    tensor = tensor.detach()
    try:
        tensor = torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.double()
    except (NotImplementedError, RuntimeError):
        return None
    return tensor.flatten().numpy()


def _bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)
