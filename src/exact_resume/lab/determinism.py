"""What makes torch give the same bits every time."""

import os
import random

import numpy as np
import torch

from exact_resume.errors import LabError


def make_deterministic(seed, threads, device):
    """Seed the global generators of torch, numpy and Python and allow deterministic kernels only.

    `threads` sets torch's thread count, whatever OMP_NUM_THREADS says: sums split over another number of threads round
    differently. Raises LabError when `device` is cuda and there is none.
    """
    if device == "cuda":
        if not torch.cuda.is_available():
            raise LabError("config key training.device: found cuda, but torch finds no GPU here; wanted cpu")
        # cuBLAS reads it when it starts and is deterministic only with a fixed workspace.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(threads)
    # The same as use_deterministic_algorithms(True), which also imports the compiler to tell it; that takes longer than
    # importing torch.
    torch.set_deterministic_debug_mode("error")
    # Deterministic mode also fills every fresh tensor, against reads of uninitialised memory. Here each is written
    # before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
