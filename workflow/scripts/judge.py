"""Hold the lab's claims against the measurements."""

import argparse
import json
from pathlib import Path

import command_line
from lab import atomic, settings

INPUTS = ["divergence", "numel", "file", "half"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--divergence", required=True, help="JSON of measure_divergence.py; one of its runs is `repeat`")
    parser.add_argument("--numel", required=True, help="JSON of count_state.py: element counts")
    parser.add_argument("--file", required=True, help="JSON of count_state.py: the resume file's keys and bytes")
    parser.add_argument("--half", required=True, help="JSON of export_half.py")
    parser.add_argument("--out", required=True, help="JSON to write: repeatable, passed, line, and each claim with its number")
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's: variants and limits")
    args = parser.parse_args()
    chosen = settings.load(settings.parse_overrides(args.settings))
    measured = {name: json.loads(Path(getattr(args, name)).read_text(encoding="utf-8")) for name in INPUTS}

    runs = measured["divergence"]["runs"]
    claims = [repeat_claim(runs["repeat"])]
    variants = settings.all_variants(chosen)
    for name, recipe in variants.items():
        claims += variant_claims(name, recipe, runs[name], chosen)
    claims += file_claims(measured, chosen)
    verdict = {
        "repeatable": claims[0]["passed"],
        "passed": all(claim["passed"] for claim in claims),
        "line": closing_line(runs, measured["divergence"]["straight_sha256"], lossless(variants, chosen)),
        "claims": claims,
    }
    atomic.write_text(args.out, json.dumps(verdict, indent=2) + "\n")


def claim(kind, text, passed, value, wanted, run=None):
    """Return one claim: `kind` is its machine name, `run` the run that it is about, `value` the number behind it."""
    return {"kind": kind, "run": run, "claim": text, "passed": bool(passed), "value": value, "wanted": wanted}


def repeat_claim(repeat):
    text = "The uninterrupted run, run again in a process of its own, gives the same bytes."
    return claim("repeat", text, repeat["identical"], repeat["max_abs_diff"], "byte-identical", "repeat")


def variant_claims(name, recipe, run, chosen):
    """Yield the claims about one variant that follow from what its recipe leaves out."""
    limits = chosen["verdict"]
    if not settings.lost(recipe, chosen):
        text = f"{name} lost nothing and ends byte-identical to straight, every logged loss included."
        same = run["identical"] and run["first_differing_step"] is None
        yield claim("identical", text, same, run["max_abs_diff"], "byte-identical", name)
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
        yield claim("seen_again", text, run["batches_seen_before"] == again, run["batches_seen_before"], f"= {again}", name)
    elif "model" not in omitted:
        gap, limit = abs(run["loss_gap_last"]) / (run["loss_last"] - run["loss_gap_last"]), limits["loss_gap"]
        text = f"{name} sees the same batches as straight: its last loss hardly shows that it lost state."
        yield claim("loss_hides_it", text, gap < limit, gap, f"< {limit}", name)


def batches_seen_again(training):
    """Return how many batches from before the first stop a run sees again that starts its batches anew after each stop."""
    stops = settings.stops(training)
    ends = [*stops[1:], training["steps"]]
    return sum(min(end - stop, stops[0]) for stop, end in zip(stops, ends))


def file_claims(measured, chosen):
    """Yield the claims about the resume file and the half-precision file."""
    file, numel, half, limits = measured["file"], measured["numel"], measured["half"], chosen["verdict"]
    wanted = list(settings.components(chosen))
    yield claim("resume_keys", "The resume file holds just what the run remembers.", file["keys"] == wanted, file["keys"], wanted)
    yield claim("optimizer_ratio", "AdamW remembers two numbers for each weight.", numel["ratio"] == 2, numel["ratio"], "= 2")
    # Averages and waiting gradients are as many numbers as the weights.
    more = ("ema" in wanted) + (file["step"] % chosen["training"]["accumulation"] > 0)
    low, high = (limit + more for limit in limits["resume_bytes_ratio"])
    text = f"The resume file is about {3 + more} times as large as the weights file."
    yield claim("resume_bytes", text, low <= file["ratio"] <= high, file["ratio"], f"{low} to {high}")
    ratio, limit = half["fp16_bytes"] / half["fp32_bytes"], limits["fp16_bytes_ratio"]
    yield claim("half_bytes", "Half precision nearly halves the weights file.", ratio < limit, ratio, f"< {limit}")
    difference, limit = half["max_logit_diff"], limits["logit_diff"]
    yield claim("half_logits", "Half precision changes the logits, a little.", 0 < difference < limit, difference, f"> 0 and < {limit}")


def lossless(variants, chosen):
    """Return the names of the variants that lose nothing and so must end like straight."""
    return [name for name, recipe in variants.items() if not settings.lost(recipe, chosen)]


def closing_line(runs, sha256, lossless):
    """Return the sentence that the pipeline ends with."""
    different = [name for name in lossless if not runs[name]["identical"]]
    digest = f"sha256 {sha256}"
    if not runs["repeat"]["identical"]:
        return f"not repeatable: repeat.pth differs from straight.pth ({digest}), so no other comparison means anything"
    if different:
        return f"NOT identical: {', '.join(f'{name}.pth' for name in different)} differ from straight.pth ({digest})"
    return f"identical: straight.pth = {' = '.join(f'{name}.pth' for name in ['repeat', *lossless])} ({digest})"


if __name__ == "__main__":
    command_line.run(main)
