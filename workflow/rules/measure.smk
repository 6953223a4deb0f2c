# What each piece costs.


rule half:
    input:
        code=code("export_half"),
        weights=f"{OUT}straight.pth",
        val=VAL,
    output:
        weights=f"{OUT}straight_fp16.pth",
        measured=f"{OUT}fp16.json",
    log:
        f"{OUT}logs/half.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    params:
        settings=training_settings(),
    shell:
        "python {input.code[0]:q} --weights {input.weights:q} --val {input.val:q} --out {output.weights:q}"
        " --report {output.measured:q} --settings {params.settings:q} 2> {log:q}"


rule count_state:
    input:
        code=code("count_state"),
        resume=f"{OUT}resume.pth",
        weights=f"{OUT}straight.pth",
    output:
        numel=f"{OUT}optim.json",
        file=f"{OUT}resume.json",
    log:
        f"{OUT}logs/count_state.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        settings=training_settings(),
    shell:
        "python {input.code[0]:q} --resume {input.resume:q} --weights {input.weights:q} --numel {output.numel:q}"
        " --file {output.file:q} --settings {params.settings:q} 2> {log:q}"


rule divergence:
    input:
        code=code("measure_divergence"),
        straight=f"{OUT}straight.pth",
        runs=expand(f"{OUT}{{run}}.pth", run=["repeat", *VARIANTS]),
        # The script finds these beside the weights.
        beside=expand(
            f"{OUT}{{file}}",
            file=[
                file for run in ["straight", "repeat", *VARIANTS] for file in (f"{run}_log.csv", f"{run}_record.npz", f"trace/{run}.csv")
            ],
        ),
    output:
        json=report(f"{OUT}divergence.json", caption="../report/divergence.rst", category="Divergence"),
        csv=report(f"{OUT}divergence.csv", caption="../report/divergence.rst", category="Divergence"),
        steps=f"{OUT}divergence_steps.csv",
    log:
        f"{OUT}logs/divergence.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        runs=lambda wildcards, input: [flag for path in input.runs for flag in ("--run", path)],
        first_updates=config["divergence"]["first_updates"],
    shell:
        "python {input.code[0]:q} --straight {input.straight:q} {params.runs:q} --first-updates {params.first_updates}"
        " --json {output.json:q} --csv {output.csv:q} --steps {output.steps:q} 2> {log:q}"


rule diagnosis:
    input:
        code=code("diagnose"),
        reference=f"{OUT}trace/straight.csv",
        other=f"{OUT}trace/{{run}}.csv",
    output:
        report(f"{OUT}diagnosis/{{run}}.json", caption="../report/diagnosis.rst", category="Diagnosis"),
    log:
        f"{OUT}logs/diagnosis_{{run}}.log",
    wildcard_constraints:
        run="|".join(["repeat", "resume", *VARIANTS]),
    conda:
        "../../envs/conda.yaml"
    threads: 1
    shell:
        "python {input.code[0]:q} {input.reference:q} {input.other:q} --json {output:q} > {log:q} 2>&1"


rule machine:
    input:
        code=code("describe_machine"),
        train=TRAIN,
        val=VAL,
    output:
        f"{OUT}machine.json",
    log:
        f"{OUT}logs/machine.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        settings=training_settings(),
        machine=MACHINE,
    shell:
        "python {input.code[0]:q} --train {input.train:q} --val {input.val:q} --out {output:q}" " --settings {params.settings:q} 2> {log:q}"


rule verdict:
    input:
        code=code("judge"),
        divergence=f"{OUT}divergence.json",
        numel=f"{OUT}optim.json",
        file=f"{OUT}resume.json",
        half=f"{OUT}fp16.json",
    output:
        report(f"{OUT}verdict.json", caption="../report/verdict.rst", category="Verdict"),
    log:
        f"{OUT}logs/verdict.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        settings=section("model", "training", "variants", "verdict"),
    shell:
        "python {input.code[0]:q} --divergence {input.divergence:q} --numel {input.numel:q} --file {input.file:q}"
        " --half {input.half:q} --out {output:q} --settings {params.settings:q} 2> {log:q}"
