# What to ask for: everything (the default), or the verdict as an exit status.


rule all:
    default_target: True
    input:
        "report.md",


rule check:
    input:
        code=code("check"),
        verdict=f"{OUT}verdict.json",
    log:
        f"{OUT}logs/check.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    shell:
        "python {input.code[0]:q} {input.verdict:q} 2> {log:q}"
