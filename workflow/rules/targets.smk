# What to ask for beside the report: the diagnoses alone, or the verdict as an exit status.


rule ablation:
    input:
        [f"{OUT}diagnosis/{variant}.json" for variant in leave_one_out()],


rule check:
    input:
        verdict=f"{OUT}verdict.json",
    log:
        f"{OUT}logs/check.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("check"),
    shell:
        "python {params.script:q} {input.verdict:q} 2> {log:q}"
