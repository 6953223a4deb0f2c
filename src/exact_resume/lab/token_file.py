"""Token files are written whole or not at all."""

from numpy.lib import format as npy

from exact_resume.checkpoint.atomic import replacing


def save(path, tokens):
    """Write the 1-D array `tokens` to `path` as .npy. Raises LabError when it can't be written.

    Not with numpy's save, which writes past the file object, and of a full disk can't say that it is full.
    """
    with replacing(path) as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(tokens))
        file.write(tokens.data)
