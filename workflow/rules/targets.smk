# What to ask for beside the report: the diagnoses alone, or the verdict as an exit status.


rule ablation:
    """For each component the run without it, and its diagnosis."""
    input:
        [f"{OUT}diagnosis/{variant}.json" for variant in leave_one_out()],
    message:
        "The diagnoses are made."


rule check:
    """Every claim of the verdict; fails when one fails."""
    input:
        verdict=f"{OUT}verdict.json",
    log:
        f"{OUT}logs/check.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("check"),
    message:
        "Checks the verdict."
    shell:
        "python {params.script:q} {input.verdict:q} 2> {log:q}"
