"""How far two runs ended apart."""

import numpy as np
import torch

from lab.errors import LabError

# What a square of 0 is divided by, so that the quotient stays a number.
TINY = np.finfo(np.float64).tiny


def check_same_tensors(reference, weights, reference_path, path):
    """Raise LabError naming both paths unless the dicts of tensors have the same names, shapes and dtypes."""
    for name in sorted(reference.keys() ^ weights.keys()):
        raise LabError(f"{path}: tensor {name} is {'missing' if name in reference else 'unknown'}; wanted the tensors of {reference_path}")
    for name, tensor in weights.items():
        found, wanted = (f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in (tensor, reference[name]))
        if found != wanted:
            raise LabError(f"{path}: tensor {name}: found {found}, wanted {wanted} as in {reference_path}")


def distance(reference, weights):
    """Return max_abs_diff, the largest absolute difference of any element, and rel_l2, |weights - reference| / |reference| (L2, in
    float64), of two dicts of the same tensors.
    """
    # In numpy, whose sums go one way with any number of threads.
    difference = torch.cat([(weights[name].double() - tensor.double()).flatten() for name, tensor in reference.items()]).numpy()
    whole = torch.cat([tensor.double().flatten() for tensor in reference.values()]).numpy()
    rel_l2 = np.sqrt(np.square(difference).sum() / max(np.square(whole).sum(), TINY))
    return {"max_abs_diff": float(np.abs(difference).max(initial=0.0)), "rel_l2": float(rel_l2)}


def same_bits(reference, weights):
    """Whether two dicts of the same tensors hold the same bits: unlike in a difference, 0 and -0 are not the same here."""
    return all(torch.equal(_bits(tensor), _bits(weights[name])) for name, tensor in reference.items())


def first_difference(reference, losses):
    """Return the first step of `losses` whose loss, as logged, is not the one in `reference`, both texts by step; None if none is."""
    return next((step for step, loss in losses.items() if reference.get(step) != loss), None)


def _bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)
