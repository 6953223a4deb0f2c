"""Hold the lab's claims against the measurements.

Claims of exactness decide the verdict: the run repeats, variants that lost nothing end as if there had been no stop,
and the resume file holds what a run remembers. All others are expectations of what losing state costs, by limits of the
lab's own model.
"""

import argparse
import json
from pathlib import Path

import command_line
from exact_resume.checkpoint import atomic
from exact_resume.lab import settings

INPUTS = ["divergence", "numel", "file", "half"]
# What a share of a loss of 0 is taken of, so that it stays a number.
TINY = 1e-12
EXACTNESS = ["repeat", "identical", "resume_keys"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--divergence", required=True, help="JSON of measure_divergence.py; one of its runs is `repeat`"
    )
    parser.add_argument("--numel", required=True, help="JSON of count_state.py: element counts")
    parser.add_argument("--file", required=True, help="JSON of count_state.py: the resume file's keys and bytes")
    parser.add_argument("--half", required=True, help="JSON of export_half.py")
    parser.add_argument(
        "--out", required=True, help="JSON to write: passed, what it rests on, a line, and each claim with its number"
    )
    parser.add_argument(
        "--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's: variants and limits"
    )
    args = parser.parse_args()
    chosen = settings.load(settings.parse_overrides(args.settings))
    measured = {name: json.loads(Path(getattr(args, name)).read_text(encoding="utf-8")) for name in INPUTS}

    runs = measured["divergence"]["runs"]
    claims = [repeat_claim(runs["repeat"])]
    variants = settings.all_variants(chosen)
    for name, recipe in variants.items():
        claims += variant_claims(name, recipe, runs[name], chosen)
    claims += file_claims(measured, chosen)
    atomic.write_text(
        args.out, json.dumps(verdict(claims, measured["divergence"], lossless(variants, chosen)), indent=2) + "\n"
    )


def verdict(claims, divergence, lossless):
    """Return the verdict: whether the run repeats; passed, which takes every claim of exactness and a variant that lost
    nothing; how many claims of exactness hold and how many expectations are met; a line that says it; the names of
    those variants; and the claims.
    """
    exactness, expectations = (counted([one for one in claims if one["exactness"] is kind]) for kind in (True, False))
    return {
        "repeatable": claims[0]["passed"],
        "passed": bool(lossless) and exactness["met"] == exactness["of"],
        "exactness": exactness,
        "expectations": expectations,
        "line": closing_line(claims, divergence, lossless, expectations),
        "lossless": lossless,
        "claims": claims,
    }


def counted(claims):
    return {"met": sum(one["passed"] for one in claims), "of": len(claims)}


def claim(kind, text, passed, value, wanted, run=None):
    """Return one claim: `kind` is its machine name, `run` the run that it is about, `value` the number behind it."""
    told = {"kind": kind, "exactness": kind in EXACTNESS, "run": run, "claim": text}
    return {**told, "passed": bool(passed), "value": value, "wanted": wanted}


def repeat_claim(repeat):
    text = "The uninterrupted run, run again in a process of its own, gives the same bytes and losses."
    return claim("repeat", text, is_same(repeat), repeat["max_abs_diff"], "byte-identical", "repeat")


def is_same(run):
    """Whether a run ended with straight's bytes and logged its losses."""
    return run["identical"] and run["first_differing_step"] is None


def variant_claims(name, recipe, run, chosen):
    """Yield the claims about one variant that follow from what its recipe leaves out."""
    limits = chosen["verdict"]
    if not settings.lost(recipe, chosen):
        text = f"{name} lost nothing and ends byte-identical to straight, every logged loss included."
        yield claim("identical", text, is_same(run), run["max_abs_diff"], "byte-identical", name)
        return
    limit = limits["max_abs_diff"]
    yield claim(
        "differs",
        f"{name} lost state and ends elsewhere than straight.",
        run["max_abs_diff"] > limit,
        run["max_abs_diff"],
        f"> {limit}",
        name,
    )
    omitted = recipe.get("omit", [])
    if "optimizer" in omitted and run["updates"]:
        ratio, limit = run["updates"][0]["ratio"], limits["update_ratio"]
        text = f"{name} has no optimizer state: its first update has a completely different size."
        yield claim("update_size", text, ratio > limit or ratio < 1 / limit, ratio, f"> {limit} or < 1/{limit}", name)
    if "gen_state" in omitted:
        again = batches_seen_again(chosen["training"])
        text = f"{name} rewound the batch order: it sees batches a second time."
        yield claim(
            "seen_again", text, run["batches_seen_before"] == again, run["batches_seen_before"], f"= {again}", name
        )
    elif "model" not in omitted:
        straight = run["loss_last"] - run["loss_gap_last"]
        gap, limit = abs(run["loss_gap_last"]) / (straight or TINY), limits["loss_gap"]
        text = f"{name} sees the same batches as straight: its last loss hardly shows that it lost state."
        yield claim("loss_hides_it", text, gap < limit, gap, f"< {limit}", name)


def batches_seen_again(training):
    """Return how many batches from before the first stop a run sees again that starts its batches anew after each
    stop.
    """
    stops = settings.stops(training)
    ends = [*stops[1:], training["steps"]]
    return sum(min(end - stop, stops[0]) for stop, end in zip(stops, ends))


def file_claims(measured, chosen):
    """Yield the claims about the resume file and the half-precision file."""
    file, numel, half, limits = measured["file"], measured["numel"], measured["half"], chosen["verdict"]
    wanted = list(settings.components(chosen))
    yield claim(
        "resume_keys",
        "The resume file holds just what the run remembers.",
        file["keys"] == wanted,
        file["keys"],
        wanted,
    )
    # There are none before the first update.
    moments = 2 if file["step"] >= chosen["training"]["accumulation"] else 0
    if moments:
        yield claim(
            "optimizer_ratio",
            "AdamW remembers two numbers for each weight.",
            numel["ratio"] == 2,
            numel["ratio"],
            "= 2",
        )
    # Averages and waiting gradients are as many numbers as the weights.
    more = ("ema" in wanted) + (file["step"] % chosen["training"]["accumulation"] > 0) + moments - 2
    low, high = (limit + more for limit in limits["resume_bytes_ratio"])
    text = f"The resume file is about {3 + more} times as large as the weights file."
    yield claim("resume_bytes", text, low <= file["ratio"] <= high, file["ratio"], f"{low:.4g} to {high:.4g}")
    ratio, limit = half["fp16_bytes"] / half["fp32_bytes"], limits["fp16_bytes_ratio"]
    yield claim("half_bytes", "Half precision nearly halves the weights file.", ratio < limit, ratio, f"< {limit}")
    difference, limit = half["max_logit_diff"], limits["logit_diff"]
    yield claim(
        "half_logits",
        "Half precision changes the logits, a little.",
        0 < difference < limit,
        difference,
        f"> 0 and < {limit}",
    )


def lossless(variants, chosen):
    """Return the names of the variants that lose nothing and so must end like straight."""
    return [name for name, recipe in variants.items() if not settings.lost(recipe, chosen)]


def closing_line(claims, divergence, lossless, expectations):
    """Return the sentence that the pipeline ends with."""
    runs, digest = divergence["runs"], f"sha256 {divergence['straight_sha256']}"
    if not is_same(runs["repeat"]):
        return f"not repeatable: {difference(runs, ['repeat'])} ({digest}), so no other comparison means anything"
    different = [name for name in lossless if not is_same(runs[name])]
    equal = " = ".join(f"{name}.pth" for name in ["straight", "repeat", *lossless])
    if different:
        line = f"NOT identical: {difference(runs, different)} ({digest})"
    elif not lossless:
        line = f"not tried: no variant restores everything; {equal} ({digest})"
    else:
        line = f"identical: {equal} ({digest})"
    if not all(one["passed"] for one in claims if one["kind"] == "resume_keys"):
        line += "; resume.pth does NOT hold what the run remembers"
    if expectations["met"] < expectations["of"]:
        line += f"; {expectations['met']} of {expectations['of']} expectations met"
    return line


def difference(runs, names):
    """Return in words what of these runs is not as straight's: the weights, or else the losses."""
    weights = [f"{name}.pth" for name in names if not runs[name]["identical"]]
    losses = [f"{name}_log.csv" for name in names if runs[name]["identical"]]
    found = [
        f"{', '.join(files)} differ{'s' if len(files) == 1 else ''} from {straight}"
        for files, straight in ((weights, "straight.pth"), (losses, "straight_log.csv"))
        if files
    ]
    return " and ".join(found)


if __name__ == "__main__":
    command_line.run(main)
