# What each piece costs.


rule half:
    """The weights in half precision, and what that changes."""
    input:
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
        **verb("export_half"),
        settings=training_settings(),
    message:
        "Rounds the weights to half precision."
    shell:
        "python {params.script:q} --weights {input.weights:q} --val {input.val:q} --out {output.weights:q}"
        " --report {output.measured:q} --settings {params.settings:q} 2> {log:q}"


rule count_state:
    """What the resume file holds, counted."""
    input:
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
        **verb("count_state"),
        settings=training_settings(),
    message:
        "Counts what the resume file holds."
    shell:
        "python {params.script:q} --resume {input.resume:q} --weights {input.weights:q} --numel {output.numel:q}"
        " --file {output.file:q} --settings {params.settings:q} 2> {log:q}"


rule divergence:
    """How far each run ends from the uninterrupted one."""
    input:
        straight=f"{OUT}straight.pth",
        runs=expand(f"{OUT}{{run}}.pth", run=["repeat", *VARIANTS]),
        # The script finds these beside the weights.
        beside=expand(
            f"{OUT}{{file}}",
            file=[
                file
                for run in ["straight", "repeat", *VARIANTS]
                for file in (f"{run}_log.csv", f"{run}_record.npz", f"trace/{run}.csv")
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
        **verb("measure_divergence"),
        runs=lambda wildcards, input: [flag for path in input.runs for flag in ("--run", path)],
        first_updates=config["divergence"]["first_updates"],
    message:
        "Compares the runs."
    shell:
        "python {params.script:q} --straight {input.straight:q} {params.runs:q} --first-updates {params.first_updates}"
        " --json {output.json:q} --csv {output.csv:q} --steps {output.steps:q} 2> {log:q}"


rule diagnosis:
    """What a run's trace tells of what it lost."""
    input:
        reference=f"{OUT}trace/straight.csv",
        repeat=f"{OUT}trace/repeat.csv",
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
    params:
        **verb("diagnose"),
    message:
        "Diagnoses {wildcards.run}."
    shell:
        "python {params.script:q} {input.reference:q} {input.other:q} --repeat {input.repeat:q}"
        " --json {output:q} > {log:q} 2>&1"


rule machine:
    """What the results were made with."""
    input:
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
        **verb("describe_machine"),
        settings=training_settings(),
        machine=machine,
    message:
        "Describes the machine."
    shell:
        "python {params.script:q} --train {input.train:q} --val {input.val:q} --out {output:q}"
        " --settings {params.settings:q} 2> {log:q}"


rule verdict:
    """Every claim with its number."""
    input:
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
        **verb("judge"),
        settings=section("model", "training", "variants", "verdict"),
    message:
        "Holds the claims against the numbers."
    shell:
        "python {params.script:q} --divergence {input.divergence:q} --numel {input.numel:q} --file {input.file:q}"
        " --half {input.half:q} --out {output:q} --settings {params.settings:q} 2> {log:q}"
