"""A verdict fails when a measurement goes against a claim, and says first of all when the machine can't repeat itself."""

import json

import pytest

from conftest import ROOT
from lab import settings
from lab.document import render

VARIANTS = {"resumed": {}, "noopt": {"omit": ["optimizer"]}, "noskip": {"omit": ["gen_state"]}}


def run(identical, **changes):
    size = 0.0 if identical else 0.02
    told = {
        "identical": identical,
        "max_abs_diff": size,
        "first_differing_step": None if identical else 32,
        "loss_last": 3.0,
        "loss_gap_last": 0.0,
    }
    return {**told, "rel_l2": size, "batches_seen_before": 0, "batches": 30, "updates": [{"ratio": 1.0, "step": 31}], **changes}


@pytest.fixture
def facts():
    runs = {"repeat": run(True), "resumed": run(True)}
    runs["noopt"] = run(False, updates=[{"ratio": 6.0, "step": 31}], loss_gap_last=0.01)
    runs["noskip"] = run(False, batches_seen_before=30)
    runs["without_model"] = runs["without_step"] = run(False)
    return {
        "divergence": {"straight_sha256": "abc", "runs": runs},
        "numel": {"ratio": 2.0},
        "file": {"keys": ["model", "optimizer", "step", "gen_state"], "ratio": 3.0, "step": 30},
        "half": {"fp16_bytes": 51, "fp32_bytes": 100, "max_logit_diff": 0.001},
    }


@pytest.fixture
def judge(verb, tmp_path):
    def call(facts):
        flags = []
        for name, content in facts.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
            flags += [f"--{name}", f"{name}.json"]
        result = verb("judge", *flags, "--out", "verdict.json", "--settings", json.dumps({"variants": VARIANTS}))
        assert result.returncode == 0, result.stderr
        return json.loads((tmp_path / "verdict.json").read_text())

    return call


def test_claims_that_hold_pass(judge, facts, verb):
    verdict = judge(facts)
    assert verdict["passed"]
    assert verdict["repeatable"]
    assert verdict["line"] == "identical: straight.pth = repeat.pth = resumed.pth (sha256 abc)"
    assert verb("check", "verdict.json").returncode == 0


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda facts: facts["divergence"]["runs"]["resumed"].update(identical=False, max_abs_diff=1e-9), "identical"),
        (lambda facts: facts["divergence"]["runs"]["resumed"].update(first_differing_step=40), "identical"),
        (lambda facts: facts["divergence"]["runs"]["noopt"].update(max_abs_diff=1e-7), "differs"),
        (lambda facts: facts["divergence"]["runs"]["noopt"].update(max_abs_diff=float("nan")), "differs"),
        (lambda facts: facts["divergence"]["runs"]["noopt"].update(updates=[{"ratio": 1.2}]), "update_size"),
        (lambda facts: facts["divergence"]["runs"]["noopt"].update(loss_gap_last=0.9), "loss_hides_it"),
        (lambda facts: facts["divergence"]["runs"]["noskip"].update(batches_seen_before=29), "seen_again"),
        (lambda facts: facts["file"].update(keys=["model", "step"]), "resume_keys"),
        (lambda facts: facts["file"].update(ratio=2.0), "resume_bytes"),
        (lambda facts: facts["numel"].update(ratio=1.9), "optimizer_ratio"),
        (lambda facts: facts["half"].update(fp16_bytes=60), "half_bytes"),
        (lambda facts: facts["half"].update(max_logit_diff=0.0), "half_logits"),
        (lambda facts: facts["half"].update(max_logit_diff=1.0), "half_logits"),
    ],
)
def test_measurement_against_a_claim_fails_that_claim_alone(judge, facts, verb, change, kind):
    change(facts)
    verdict = judge(facts)
    assert {claim["kind"] for claim in verdict["claims"] if not claim["passed"]} == {kind}
    assert not verdict["passed"]
    assert verb("check", "verdict.json").returncode == 1


@pytest.mark.parametrize("language", ["ko", "en"])
def test_machine_that_cant_repeat_itself_is_the_first_thing_said(judge, facts, language):
    facts["divergence"]["runs"]["repeat"].update(identical=False, max_abs_diff=0.5)
    verdict = judge(facts)
    assert not verdict["repeatable"]
    assert verdict["line"].startswith("not repeatable: ")
    numbers = ["loss_gap_first", "first_differing_step"]
    for measured in facts["divergence"]["runs"].values():
        measured.update(dict.fromkeys(numbers, 0))
    facts["numel"].update(model_numel=1, optimizer_numel=2)
    facts["file"].update(resume_bytes=3, weights_bytes=1)
    machine = dict.fromkeys(["torch", "numpy", "snakemake", "python", "cpu", "device", "threads", "train_sha256", "val_sha256"], "x")
    rest = {"machine": machine, "losses": [{"train_loss": "5.0"}], "pictures": {"losses": "a.svg", "divergence": "b.svg"}}
    chosen = settings.load({"variants": VARIANTS})
    variants = settings.all_variants(chosen)
    identical = {"verdict": "identical", "last_step": 60, "notes": [], "unused": [], "sentence": "identical through step 60"}
    diagnoses = dict.fromkeys(variants, identical)
    rest.update(verdict=verdict, settings=chosen, variants=variants, stops=[30], diagnoses=diagnoses)
    text = render(ROOT / "templates" / f"report.{language}.md.j2", {**facts, **rest})
    opening = text.split("##")[0]
    assert {"ko": "판정: 비교 불가", "en": "Verdict: no comparison possible"}[language] in opening
    assert {"ko": "아무것도 뜻하지 않는다", "en": "means anything"}[language] in opening
