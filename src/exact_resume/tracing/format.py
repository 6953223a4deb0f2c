"""The grammar of a trace: for who writes one and for who reads it. Needs no torch.

A trace is CSV. Its first line is the title: TITLE, the format's version, and the unit that a row is of, batch or
update. Then come a header and the rows, and where the columns change, another header. A header begins with the column
`row`, which holds a row's number.

- `row`: the number of the batch or update; `configuration`: digest of what was given as such;
- NAME: a registered component. Of a module the parameters, of an optimizer its state, of another object what its
  state_dict() returns. A few numbers and texts stand as they are, all else as a digest;
- NAME.float16, NAME.bfloat16: digests of the component rounded to that precision, see `Rounding`;
- NAME.unordered: a digest that doesn't see in which order the tensors stand;
- NAME.each: a short tag of each tensor and value, in their order; NAME.dtypes: the tensors' dtypes;
- NAME.unseen: types of what has no digest and was not looked at;
- NAME.buffers and NAME.gradients of a module, NAME.parameters of an optimizer (those that no module has), each with all
  of these;
- NAME.mode, NAME.trainable and NAME.attributes of a module: train or eval, which parameters want gradients, plain
  values beside the tensors;
- NAME.settings of an optimizer: its hyperparameters, but for the learning rate, and which parameters they are for;
  NAME.attributes too;
- NAME.detached of an optimizer: `detached` where it has none of the modules' parameters and one of them changed without
  the other;
- NAME.kind: one of KINDS, of what is known to be of that kind;
- rng.torch, rng.cuda, rng.numpy, rng.python: the global generators;
- `lr` (by optimizer, where there are several), `batch` and whatever else before_step was given: what goes into this row
  alone;
- `loss`, and NAME.after, NAME.PART.after and lr.after: what came out of it.

A cell is empty where there is nothing: roundings of what holds no numbers with decimals, say.
"""

from dataclasses import dataclass

import xxhash

TITLE, VERSION = "exact-resume trace", "2"
UNITS = ("batch", "update")
NUMBER, CONFIGURATION, RATE, BATCH, LOSS, AFTER = "row", "configuration", "lr", "batch", "loss", "after"
PRECISIONS = ("float16", "bfloat16")
# Column and cell of an optimizer that has nothing to do with the registered modules.
DETACHED = "detached"
# Columns that help to tell what was done to a component and are none themselves.
HELPERS = (*PRECISIONS, "unordered", "each", "dtypes", "unseen", "kind", DETACHED)
PARTS = ("buffers", "gradients", "parameters", "mode", "trainable", "attributes", "settings")
GENERATORS = ("rng.torch", "rng.cuda", "rng.numpy", "rng.python")
# Columns of their own, and so no names for components.
RESERVED = (NUMBER, CONFIGURATION, RATE, BATCH, LOSS, "rng")
KINDS = ("module", "optimizer", "scheduler", "scaler", "loader", "generator")
# The digest of nothing: what an optimizer that never stepped, or gradients that were never computed, have.
EMPTY = xxhash.xxh3_128_hexdigest(b"")
# Begins a cell that stands for something without a digest.
UNSEEN = "unseen "
# Characters of a tag in NAME.each, and tags at most; components of more tensors have none.
TAG, MOST_TAGS = 4, 4096


@dataclass
class Rounding:
    """What a cell NAME.float16 or NAME.bfloat16 says.

    `digest` is of the tensors' values rounded to that precision, and of all else but tensors without dimensions;
    `exact` is whether the tensors hold just the rounded values (only a process' first row looks; else False). Tensors
    without dimensions, which in an optimizer's state count updates and may have been kept as they are, have the same of
    their own: `scalars`, `exact_scalars`, and `as_they_are`, the digest of their own values; "" and False where there
    are none.
    """

    digest: str
    exact: bool
    scalars: str = ""
    exact_scalars: bool = False
    as_they_are: str = ""

    def __str__(self):
        own = f"{'=' if self.exact else '~'}{self.digest}"
        return f"{own} {'=' if self.exact_scalars else '~'}{self.scalars} {self.as_they_are}" if self.scalars else own

    @classmethod
    def read(cls, cell):
        """Return the Rounding that the text `cell` says."""
        tensors, scalars, as_they_are = [*cell.split(" "), "", ""][:3]
        return cls(tensors[1:], tensors[:1] == "=", scalars[1:], scalars[:1] == "=", as_they_are)

    def makes(self, other):
        """Whether rounding what `other` is of makes what this one is of, all of it or all but the tensors without
        dimensions.
        """
        scalars = self.as_they_are == other.as_they_are or (self.exact_scalars and self.scalars == other.scalars)
        return self.exact and self.digest == other.digest and scalars


def is_digest(cell):
    """Whether a cell is a digest, not a number or text as it is."""
    return len(cell) == 32 and set(cell) <= set("0123456789abcdef")


def part(column):
    """Return the last part of a column's name, "" if it has just one."""
    return column.rpartition(".")[2] if "." in column else ""
