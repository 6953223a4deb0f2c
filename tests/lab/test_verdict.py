"""A verdict fails when a measurement goes against exactness, and only then; expectations that are missed are told
apart. It says first of all when the machine can't repeat itself.
"""

import json
import re

import pytest

from conftest import ROOT
from exact_resume.lab import settings
from exact_resume.pipeline.document import render

VARIANTS = {
    **dict.fromkeys(["nostep", "weightsonly", "halfmodel", "replayed"]),
    **{"resumed": {}, "noopt": {"omit": ["optimizer"]}, "noskip": {"omit": ["gen_state"]}},
}
EXACTNESS = {"repeat", "identical", "resume_keys"}


def run(identical, **changes):
    size = 0.0 if identical else 0.02
    told = {
        "identical": identical,
        "max_abs_diff": size,
        "first_differing_step": None if identical else 32,
        "loss_last": 3.0,
        "loss_gap_first": 0.0,
        "loss_gap_last": 0.0,
        "loss_gap_largest": size,
        "same_batches": True,
    }
    return {
        **told,
        "rel_l2": size,
        "batches_seen_before": 0,
        "batches": 30,
        "updates": [{"ratio": 1.0, "step": 31}],
        **changes,
    }


@pytest.fixture
def facts():
    runs = {"repeat": run(True), "resumed": run(True)}
    runs["noopt"] = run(False, updates=[{"ratio": 6.0, "step": 31}], loss_gap_last=0.01)
    runs["noskip"] = run(False, batches_seen_before=30, same_batches=False)
    runs["without_model"] = runs["without_step"] = run(False)
    return {
        "divergence": {"straight_sha256": "abc", "runs": runs},
        "numel": {"ratio": 2.0},
        "file": {"keys": ["model", "optimizer", "step", "gen_state"], "ratio": 3.0, "step": 30},
        "half": {"fp16_bytes": 51, "fp32_bytes": 100, "max_logit_diff": 0.001},
    }


@pytest.fixture
def judge(verb, tmp_path):
    def call(facts, **changed):
        flags = []
        for name, content in facts.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
            flags += [f"--{name}", f"{name}.json"]
        result = verb(
            "judge", *flags, "--out", "verdict.json", "--settings", json.dumps({"variants": VARIANTS, **changed})
        )
        assert result.returncode == 0, result.stderr
        return json.loads((tmp_path / "verdict.json").read_text())

    return call


def test_claims_that_hold_pass(judge, facts, verb):
    verdict = judge(facts)
    assert verdict["passed"]
    assert verdict["repeatable"]
    assert verdict["line"] == "identical: straight.pth = repeat.pth = resumed.pth (sha256 abc)"
    told = verb("check", "verdict.json")
    assert told.returncode == 0
    assert told.stdout.endswith("3 of 3 claims of exactness hold; 12 of 12 expectations met\n")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda facts: facts["divergence"]["runs"]["resumed"].update(identical=False, max_abs_diff=1e-9), "identical"),
        (lambda facts: facts["divergence"]["runs"]["resumed"].update(first_differing_step=40), "identical"),
        (lambda facts: facts["divergence"]["runs"]["repeat"].update(identical=False), "repeat"),
        (lambda facts: facts["divergence"]["runs"]["repeat"].update(first_differing_step=40), "repeat"),
        (lambda facts: facts["divergence"]["runs"]["noskip"].update(identical=True, max_abs_diff=0.0), "differs"),
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
    assert verdict["passed"] is (kind not in EXACTNESS)
    assert {claim["kind"] for claim in verdict["claims"] if claim["exactness"]} == EXACTNESS
    told = verb("check", "verdict.json")
    assert told.returncode == (1 if kind in EXACTNESS else 0)
    assert ("FAIL  " in told.stdout, "miss  " in told.stdout) == (kind in EXACTNESS, kind not in EXACTNESS)
    if kind in EXACTNESS:
        assert (
            not verdict["line"].startswith("identical: ")
            or "resume.pth does NOT hold what the run remembers" in verdict["line"]
        )
    else:
        assert (
            verdict["line"]
            == "identical: straight.pth = repeat.pth = resumed.pth (sha256 abc); 11 of 12 expectations met"
        )


def test_what_differs_is_named_in_the_line(judge, facts):
    runs = facts["divergence"]["runs"]
    runs["resumed"].update(first_differing_step=40)
    assert judge(facts)["line"] == "NOT identical: resumed_log.csv differs from straight_log.csv (sha256 abc)"
    runs["resumed"].update(identical=False)
    assert judge(facts)["line"] == "NOT identical: resumed.pth differs from straight.pth (sha256 abc)"


def test_nothing_passes_that_was_not_tried(judge, facts, verb):
    verdict = judge(facts, variants={**VARIANTS, "resumed": None})
    assert not verdict["passed"]
    assert verdict["line"].startswith("not tried: no variant restores everything")
    assert verb("check", "verdict.json").returncode == 1


def test_loss_of_nothing_is_no_division_by_zero(judge, facts):
    facts["divergence"]["runs"]["noopt"].update(loss_last=0.0, loss_gap_last=0.0)
    assert judge(facts)["passed"]


def test_state_that_is_not_there_yet_is_not_expected(judge, facts):
    facts["file"].update(keys=["model", "optimizer", "step", "gen_state", "gradients"], step=2, ratio=2.0)
    facts["numel"].update(ratio=0.0)
    facts["divergence"]["runs"]["without_gradients"] = run(False)
    verdict = judge(facts, training={"accumulation": 3, "stop_at": 2})
    assert "optimizer_ratio" not in {claim["kind"] for claim in verdict["claims"]}
    assert [claim["passed"] for claim in verdict["claims"] if claim["kind"] == "resume_bytes"] == [True]


HANGUL = re.compile("[가-힣]")


@pytest.fixture
def report(judge, facts):
    """A function that renders the report about `facts` in a language, of a run with these settings."""

    def call(language, **changed):
        verdict = judge(facts, **changed)
        facts["numel"].update(model_numel=1, optimizer_numel=2)
        facts["file"].update(resume_bytes=3, weights_bytes=1)
        machine = dict.fromkeys(
            ["torch", "numpy", "snakemake", "python", "cpu", "device", "threads", "train_sha256", "val_sha256"], "x"
        )
        rest = {
            "machine": machine,
            "losses": [{"train_loss": "5.0"}],
            "pictures": {"losses": "a.svg", "divergence": "b.svg"},
        }
        chosen = settings.load({"variants": VARIANTS, **changed})
        variants = settings.all_variants(chosen)
        identical = {
            **{"verdict": "identical", "unit": "batch", "last_row": 60, "culprits": [], "explained": [], "latent": []},
            **{"notes": [], "unused": [], "not_looked_at": [], "sentence": "identical through batch 60"},
        }
        rest.update(verdict=verdict, settings=chosen, variants=variants, stops=settings.stops(chosen["training"]))
        rest.update(diagnoses=dict.fromkeys(variants, identical))
        return render(ROOT / "templates" / f"report.{language}.md.j2", {**facts, **rest})

    return call


@pytest.mark.parametrize("language", ["ko", "en"])
def test_missed_expectation_leaves_the_verdict_as_it_is(report, facts, language):
    facts["divergence"]["runs"]["noopt"].update(updates=[{"ratio": 1.31, "step": 31}])
    opening = report(language).split("##")[0]
    assert {"ko": "판정: 합격", "en": "Verdict: passed"}[language] in opening
    assert {"ko": "12개 가운데 11개", "en": "11 of 12 met"}[language] in opening
    assert "1.31" in opening
    facts["divergence"]["runs"]["resumed"].update(identical=False)
    opening = report(language).split("##")[0]
    assert {"ko": "판정: 불합격", "en": "Verdict: failed"}[language] in opening
    assert {"ko": "3개 가운데 1개", "en": "1 of 3 claims of exactness does not hold"}[language] in opening


def test_english_report_has_no_korean_and_korean_prose_no_english(report, facts):
    runs = facts["divergence"]["runs"]
    for measured in ({}, {"first_differing_step": 40}, {"identical": False}):
        runs["resumed"].update(measured)
        runs["noopt"].update(updates=[{"ratio": 1.31, "step": 31}])
        facts["file"].update(ratio=9.0)
        facts["half"].update(max_logit_diff=1.0)
        assert not HANGUL.search(report("en"))
        prose = re.sub(r"`[^`]*`|\(\S*\.svg\)", "", report("ko").split("---\n")[0])
        assert set(re.findall("[A-Za-z]{2,}", prose)) <= {"AdamW", "svg", "straight", "float"}


@pytest.mark.parametrize("language", ["ko", "en"])
def test_report_of_another_run_says_nothing_of_the_labs(report, facts, language):
    """Two steps, accumulated, with one variant only."""
    runs = facts["divergence"]["runs"]
    for name in ("noopt", "noskip"):
        del runs[name]
    for measured in runs.values():
        measured.update(updates=[], batches=1)
    for name in ("without_optimizer", "without_gen_state", "without_gradients"):
        runs[name] = run(True, updates=[], batches=1)
    facts["file"].update(keys=["model", "optimizer", "step", "gen_state", "gradients"], step=1, ratio=2.0)
    facts["numel"].update(ratio=0.0)
    text = report(
        language,
        variants={**VARIANTS, "noopt": None, "noskip": None},
        training={"steps": 2, "stop_at": 1, "accumulation": 3},
    )
    wanted = {
        "ko": ["`resume.pth`에서 시작해 2단계를", "배치 1개 몫"],
        "en": ["trained step 2 from", "at this stop of 1 batch |"],
    }
    unwanted = {
        "ko": ["2–2", "갱신의 크기(", "무거운 까닭"],
        "en": ["2–2", "Sizes of the updates", "checkpoints of large models"],
    }
    assert [words for words in wanted[language] if words not in text] == []
    assert [words for words in [*unwanted[language], "noopt", "noskip", "halfmodel"] if words in text] == []


@pytest.mark.parametrize("language", ["ko", "en"])
def test_report_tells_every_stop_of_a_chain(report, facts, language):
    for name in ("noopt", "noskip"):
        facts["divergence"]["runs"][name].update(batches_seen_before=30)
    text = report(language, training={"stop_at": [10, 20, 40]})
    wanted = {
        "ko": ["10, 20, 40단계에서 멈췄다가", "20, 40단계에서 다시"],
        "en": ["after steps 10, 20 and 40", "after steps 20 and 40"],
    }
    assert [words for words in wanted[language] if words not in text] == []


@pytest.mark.parametrize("language", ["ko", "en"])
def test_machine_that_cant_repeat_itself_is_the_first_thing_said(judge, report, facts, language):
    facts["divergence"]["runs"]["repeat"].update(identical=False, max_abs_diff=0.5)
    verdict = judge(facts)
    assert not verdict["repeatable"]
    assert verdict["line"].startswith("not repeatable: ")
    text = report(language)
    opening = text.split("##")[0]
    assert {"ko": "판정: 비교 불가", "en": "Verdict: no comparison possible"}[language] in opening
    assert {"ko": "아무것도 뜻하지 않는다", "en": "means anything"}[language] in opening
