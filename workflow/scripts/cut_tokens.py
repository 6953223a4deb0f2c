"""Take the first tokens of a token file, so that small trainers go over them more than once."""

import argparse

import numpy as np

import command_line
from exact_resume.lab import data, token_file


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", required=True, help="token file to read (.npy, 1-D, integers)")
    parser.add_argument(
        "--first", type=int, required=True, metavar="N", help="how many tokens to take; all, if there are fewer"
    )
    parser.add_argument("--out", required=True, help="token file to write, of the same type")
    args = parser.parse_args()
    tokens = data.load_tokens(args.tokens, np.iinfo(np.int64).max, 1)
    token_file.save(args.out, tokens[: args.first])


if __name__ == "__main__":
    command_line.run(main)
