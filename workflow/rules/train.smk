# The runs: twice without a stop, once up to the stop, and from there once for each variant.


rule uninterrupted:
    input:
        code=code("train"),
        tokens=TRAIN,
    output:
        weights=f"{OUT}{{run}}.pth",
        log=f"{OUT}{{run}}_log.csv",
        record=f"{OUT}{{run}}_record.npz",
    log:
        f"{OUT}logs/{{run}}.log",
    wildcard_constraints:
        run="straight|repeat",
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    params:
        settings=training_settings(),
        machine=MACHINE,
    shell:
        "python {input.code[0]:q} --tokens {input.tokens:q} --out {output.weights:q} --log {output.log:q}"
        " --record {output.record:q} --settings {params.settings:q} 2> {log:q}"


rule stopped:
    input:
        code=code("train"),
        tokens=TRAIN,
    output:
        resume=f"{OUT}resume.pth",
    log:
        f"{OUT}logs/resume.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    params:
        stop_at=STOP_AT,
        settings=training_settings(),
        machine=MACHINE,
    shell:
        "python {input.code[0]:q} --tokens {input.tokens:q} --stop-at {params.stop_at} --out {output.resume:q}"
        " --settings {params.settings:q} 2> {log:q}"


rule variant:
    input:
        code=code("train"),
        tokens=TRAIN,
        resume=f"{OUT}resume.pth",
    output:
        weights=f"{OUT}{{variant}}.pth",
        log=f"{OUT}{{variant}}_log.csv",
        record=f"{OUT}{{variant}}_record.npz",
    log:
        f"{OUT}logs/{{variant}}.log",
    wildcard_constraints:
        variant="|".join(VARIANTS),
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    params:
        recipe=recipe,
        settings=training_settings(),
        machine=MACHINE,
    shell:
        "python {input.code[0]:q} --tokens {input.tokens:q} --resume {input.resume:q} {params.recipe:q}"
        " --out {output.weights:q} --log {output.log:q} --record {output.record:q}"
        " --settings {params.settings:q} 2> {log:q}"
